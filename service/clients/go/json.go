package latchgate

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"unicode/utf8"
)

// The deepest value that is looked at: a value may refer to itself.
const depthMax = 100

var (
	isMarshaler     = reflect.TypeOf((*json.Marshaler)(nil)).Elem()
	isTextMarshaler = reflect.TypeOf((*encoding.TextMarshaler)(nil)).Elem()
	isError         = reflect.TypeOf((*error)(nil)).Elem()
)

// encode is the value as JSON: a copy, because the caller may change the value while a call is repeated.
func encode(path string, value any) (json.RawMessage, error) {
	if err := checkJSON(path, reflect.ValueOf(value), 0); err != nil {
		return nil, err
	}
	text, err := json.Marshal(value)
	if err != nil {
		return nil, invalid(path + " is no JSON: " + err.Error())
	}
	if !utf8.Valid(text) { // that of a json.Marshaler
		return nil, invalid(path + " is not UTF-8")
	}
	return text, nil
}

// encodeIdentity refuses what says nothing, too: an identity that was lost on its way here is the same for all callers that have lost theirs.
func encodeIdentity(path string, value any) (json.RawMessage, error) {
	text, err := encode(path, value)
	var decoded any
	if err == nil && json.Unmarshal(text, &decoded) == nil && saysNothing(decoded) {
		err = invalid(path + " says nothing: it is nil or empty, or has only members that are")
	}
	return text, err
}

func saysNothing(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		for _, member := range value {
			if !saysNothing(member) {
				return false
			}
		}
		return true
	case []any:
		for _, member := range value {
			if !saysNothing(member) {
				return false
			}
		}
		return true
	}
	return value == nil || value == ""
}

// checkJSON refuses what encoding/json would drop or change without a word: two operations that differ only in that would be one.
func checkJSON(path string, v reflect.Value, depth int) error {
	if !v.IsValid() || (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) && v.IsNil() {
		return nil // null
	}
	if depth > depthMax {
		return invalid(path + " is nested too deeply")
	}
	if v.Kind() == reflect.Interface {
		return checkJSON(path, v.Elem(), depth+1)
	}
	t := v.Type()
	if does(v, isMarshaler) {
		return checkPromotion(path, v)
	}
	if does(v, isTextMarshaler) {
		text, err := as[encoding.TextMarshaler](v).MarshalText()
		if err == nil && !utf8.Valid(text) {
			return invalid(path + " is not UTF-8")
		}
		return checkPromotion(path, v)
	}
	if does(v, isError) {
		return invalid(fmt.Sprintf("%s is an error (%s), which JSON cannot say", path, t))
	}
	switch v.Kind() {
	case reflect.Pointer:
		return checkJSON(path, v.Elem(), depth+1)
	case reflect.Float32, reflect.Float64:
		if math.IsNaN(v.Float()) || math.IsInf(v.Float(), 0) {
			return invalid(fmt.Sprintf("%s is %v, which JSON cannot say", path, v))
		}
	case reflect.String:
		if !utf8.ValidString(v.String()) {
			return invalid(path + " is not UTF-8")
		}
	case reflect.Array, reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return nil
		}
		for i := 0; i < v.Len(); i++ {
			if err := checkJSON(fmt.Sprintf("%s[%d]", path, i), v.Index(i), depth+1); err != nil {
				return err
			}
		}
	case reflect.Map:
		for each := v.MapRange(); each.Next(); {
			if err := checkJSON("a key of "+path, each.Key(), depth+1); err != nil {
				return err
			}
			if err := checkJSON(fmt.Sprintf("%s.%v", path, each.Key()), each.Value(), depth+1); err != nil {
				return err
			}
		}
	case reflect.Struct:
		return checkFields(path, v, depth, 0, map[string]int{})
	case reflect.Chan, reflect.Func, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		return invalid(fmt.Sprintf("%s is a %s, which JSON cannot say", path, t))
	}
	return nil
}

// checkFields also looks into embedded structs, at a level of their own. `levels` are those of the names that were found.
func checkFields(path string, v reflect.Value, depth, level int, levels map[string]int) error {
	for i := 0; i < v.NumField(); i++ {
		field, inner := v.Type().Field(i), v.Field(i)
		tag := field.Tag.Get("json")
		if tag == "-" || field.Name == "_" {
			continue
		}
		name, _, _ := strings.Cut(tag, ",")
		within := path + "." + or(name, field.Name)
		if inner.Kind() == reflect.Pointer && !inner.IsNil() && field.Anonymous {
			inner = inner.Elem()
		}
		if field.Anonymous && name == "" && inner.Kind() == reflect.Struct && !does(inner, isMarshaler) && !does(inner, isTextMarshaler) {
			if err := checkFields(path, inner, depth+1, level+1, levels); err != nil {
				return err
			}
			continue
		}
		if !field.IsExported() {
			return invalid(within + " is not exported, so JSON leaves it out: export it, or tag it `json:\"-\"`")
		}
		if other, is := levels[or(name, field.Name)]; is && other == level {
			return invalid(within + " is there twice, so JSON leaves it out")
		}
		levels[or(name, field.Name)] = level
		if err := checkJSON(within, inner, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// checkPromotion refuses a struct that is encoded as the value that is embedded in it, without its other fields.
func checkPromotion(path string, v reflect.Value) error {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct || v.NumField() == 1 {
		return nil
	}
	whole, err := json.Marshal(as[any](v))
	for i := 0; i < v.NumField() && err == nil; i++ {
		inner := v.Field(i)
		if !v.Type().Field(i).Anonymous || !inner.CanInterface() || !does(inner, isMarshaler) && !does(inner, isTextMarshaler) {
			continue
		}
		if part, err := json.Marshal(as[any](inner)); err == nil && bytes.Equal(part, whole) {
			return invalid(path + " is encoded as its " + v.Type().Field(i).Name + " alone, without its other fields")
		}
	}
	return nil
}

// does says whether encoding/json finds this method: that of a pointer only if the value has an address.
func does(v reflect.Value, method reflect.Type) bool {
	return v.Type().Implements(method) || v.CanAddr() && reflect.PointerTo(v.Type()).Implements(method)
}

// as is the value as encoding/json sees it.
func as[T any](v reflect.Value) T {
	if one, is := v.Interface().(T); is && !v.CanAddr() {
		return one
	}
	return v.Addr().Interface().(T)
}
