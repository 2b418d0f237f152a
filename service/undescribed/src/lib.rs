//! The names of utoipa's macros, which do nothing. A node answers with `openapi/openapi.json` as it is in the repository; only tests and
//! `make openapi` make it from the annotations, because a build with utoipa and what it needs takes a twentieth longer.

use proc_macro::TokenStream;

#[proc_macro_derive(ToSchema, attributes(schema))]
pub fn to_schema(_: TokenStream) -> TokenStream {
    TokenStream::new()
}

#[proc_macro_derive(IntoParams, attributes(into_params, param))]
pub fn into_params(_: TokenStream) -> TokenStream {
    TokenStream::new()
}

#[proc_macro_attribute]
pub fn path(_: TokenStream, handler: TokenStream) -> TokenStream {
    handler
}
