//! What the pages of both programs share: their look, the policy that limits what a
//! page may load, and HTML from foreign text.

#[cfg(feature = "server")]
mod asset;
mod html;

#[cfg(feature = "server")]
pub use self::asset::Asset;
pub use self::html::{count, escape, gpus, mark, percent, ranges};

/// The style with which the style of each page begins.
pub const STYLE: &str = include_str!("page/base.css");
