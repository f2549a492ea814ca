//! The process's TLS provider, chosen in one place.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};

/// Makes ring the process's TLS provider, unless one is already set, and returns the one in force.
/// Mains call this first; every client of this crate calls it too, so forgetting costs nothing.
///
/// ring rather than AWS-LC: AWS-LC gathers jitter entropy at its first handshake, which costs about
/// 50 ms of CPU in a cold start.
pub fn install() -> Arc<CryptoProvider> {
    if let Some(present) = CryptoProvider::get_default() {
        return Arc::clone(present);
    }
    // Losing a race against another installer is fine: theirs is then in force.
    let _ = ring::default_provider().install_default();
    match CryptoProvider::get_default() {
        Some(present) => Arc::clone(present),
        None => Arc::new(ring::default_provider()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_install_keeps_the_first_provider() {
        let first = install();
        assert!(Arc::ptr_eq(&first, &install()));
        assert!(CryptoProvider::get_default().is_some());
    }
}
