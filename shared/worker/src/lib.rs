//! A worker: hands that sit anywhere and fetch their work. It polls the queue of a self-hosted
//! environment, keeps the items that it is given by heartbeats, runs the calls of their sessions, and
//! gives the results back. It makes outbound requests only.
//!
//! It knows the wire protocol and [`Hands`](tailstep_runtime::ports::Hands), and neither a sandbox
//! nor the server behind the protocol. Its credentials go into requests and nowhere else.

mod calls;
mod client;
mod events;
mod item;
mod key;
mod lease;
mod pause;
mod run;
mod session;
mod skills;

use std::sync::Arc;

use tailstep_runtime::ports::{Blobs, Hands};

pub use self::{
    client::{CallError, Client, ClientError},
    key::Key,
    run::{Served, run},
};

/// One worker.
#[derive(Clone)]
pub struct Worker {
    pub client: Arc<Client>,
    pub hands: Arc<dyn Hands>,
    /// Where skills are kept; `hands` reads them there.
    pub blobs: Arc<dyn Blobs>,
    pub config: Config,
}

#[derive(Debug, Clone)]
pub struct Config {
    /// The environment whose work is done.
    pub environment: String,
    /// The environment key.
    pub key: Key,
    /// A session that has rested for this long is given back.
    pub idle_ms_max: u64,
    /// How long the server keeps an item for a worker that it does not hear.
    pub lease_s: u32,
    /// Sessions served at one time.
    pub sessions_max: usize,
    pub until: Until,
}

/// When a worker ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Only when it is told to.
    Stopped,
    /// When the queue is empty and what it has is done.
    Drained,
    /// When it has served one item.
    Once,
}
