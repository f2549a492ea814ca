//! What the compiler does not check about the tree: dependency walls, sizes, single call sites, and
//! that what the documents name exists.
//!
//! Each check is a function of text that returns what is wrong, so that a bad fixture can show that it
//! is able to fail. None of them builds anything.

pub mod documents;
pub mod source;
pub mod tree;
pub mod walls;
