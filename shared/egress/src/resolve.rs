//! Names to addresses.

use std::{io, net::IpAddr};

/// Looks names up, outside the sandbox. The broker asks once for each connection, checks every answer
/// and connects to one of them; it never asks a second time for the same connection.
#[async_trait::async_trait]
pub trait Resolver: Send + Sync {
    /// All addresses of `name`, which is in lower case and without a dot at its end.
    ///
    /// # Errors
    /// When there is no such name, or nobody answers.
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The system's resolver.
#[derive(Debug, Clone, Copy)]
pub struct System;

#[async_trait::async_trait]
impl Resolver for System {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let found = tokio::net::lookup_host((name, 0)).await?;
        Ok(found.map(|address| address.ip()).collect())
    }
}
