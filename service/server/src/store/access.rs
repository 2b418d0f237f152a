//! The document of apps and API keys, as a store keeps it: a text with a version.

/// A version of the document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessText {
    /// Rises with every change, and follows the clock as epochs do; 0 if there is no document.
    pub version: u64,
    /// `None` if there is no document, or if the reader has this version.
    pub text: Option<String>,
}
