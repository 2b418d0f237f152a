//! Every answer that is not 2xx: its code, its body and its page.

mod body;
mod codes;
mod page;

pub use self::body::{Problem, either, within};
pub use self::codes::{Code, CodeInfo};
pub use self::page::page;
