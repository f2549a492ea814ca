//! The order of I/O: how a step, an incoming request and a sweep use the ports.
//!
//! **Architecture invariant:** the runtime knows no service, no vendor, no HTTP and no files. The
//! same [`step::step`] runs in a Lambda function, in the local process and in the simulator.

pub mod content;
pub mod error;
pub mod ids;
pub mod ingress;
pub mod load;
pub mod memory;
#[cfg(feature = "planted-bugs")]
pub mod planted;
pub mod ports;
pub mod prefix;
pub mod record;
pub mod step;
pub mod sweep;
pub mod work;

use std::sync::Arc;

use tailstep_core::limits::Limits;

use self::{
    ports::{Clock, Documents, Hands, Log, Model, Queue},
    prefix::Prefixes,
};

/// Everything a step may touch.
#[derive(Clone)]
pub struct Runtime {
    pub log: Arc<dyn Log>,
    pub queue: Arc<dyn Queue>,
    pub model: Arc<dyn Model>,
    pub hands: Arc<dyn Hands>,
    /// Where the work of outside workers is written down.
    pub documents: Arc<dyn Documents>,
    pub clock: Arc<dyn Clock>,
    pub limits: Limits,
    pub prefixes: Arc<Prefixes>,
}
