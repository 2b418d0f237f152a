//! Objects within a body. serde also reads a list as the fields of a struct in their order: here it is refused.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

struct Object<T>(T);

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields)).map(Object)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// For a field that is an object or null.
///
/// # Errors
/// Those of the deserializer.
pub fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(field: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Object<T>>::deserialize(field)?.map(|Object(object)| object))
}

/// For a field that is a list of objects.
///
/// # Errors
/// Those of the deserializer.
pub fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(field: D) -> Result<Vec<T>, D::Error> {
    Ok(Vec::<Object<T>>::deserialize(field)?.into_iter().map(|Object(object)| object).collect())
}
