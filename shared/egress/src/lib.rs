//! The egress broker: the one way out of a sandbox.
//!
//! Owns what a sandbox may reach: it is an HTTP proxy (absolute-form requests and `CONNECT`) that runs
//! outside the sandbox, accepts on a listener inside it, and refuses what no rule allows. It resolves
//! names itself, once, and connects only to addresses that it has checked. Secrets are placeholders
//! inside; the broker puts the values in for the hosts that a rule names, and takes them out of the
//! answers.
//!
//! Must not know: sessions, logs, how sandboxes are made, where secrets are stored.
//!
//! What comes in from the sandbox is hostile. Every parser here is strict and total: what it does not
//! understand, it refuses.

mod address;
mod answer;
mod authority;
mod body;
mod broker;
mod config;
mod connect;
mod error;
mod exchange;
mod head;
mod hello;
mod inspect;
mod journal;
mod meter;
mod plain;
mod policy;
mod refusal;
mod request;
mod resolve;
mod scrub;
mod secret;
mod stream;
mod substitute;
mod tls;
mod tunnel;

pub use self::{
    address::{Net, is_public},
    authority::{Authority, Host},
    broker::Broker,
    config::Config,
    error::EgressError,
    policy::Policy,
    resolve::{Resolver, System},
    secret::Secret,
};
