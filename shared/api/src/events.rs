//! What is said in a session and what happens in it: sending, listing and following events.
//!
//! The log's events are not the API's: one of the log gives none, one or several of the API, made by
//! [`view`] and nowhere else. The list and the stream show the same events with the same ids.

mod body;
mod content;
mod cursor;
mod list;
mod past;
mod send;
mod stream;
mod view;

pub(crate) use self::{
    list::list,
    send::{NO_CALL, send},
    stream::stream,
};
