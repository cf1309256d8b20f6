//! What the pages of both programs share: their look, the policy that limits what a
//! page may load, and HTML from foreign text.

mod asset;
mod html;

pub use self::{
    asset::Asset,
    html::{escape, mark},
};

/// The style with which the style of each page begins.
pub const STYLE: &str = include_str!("page/base.css");
