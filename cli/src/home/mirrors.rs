//! Mirrors of the public registries, which the operator names and package builds use instead.

use anyhow::{Context, bail};
use axum::http::Uri;
use tailstep_core::egress::EgressRule;
use tailstep_local::PackageSource;

/// Variables that name mirrors, and the ones by which builds hear of them.
const MIRRORS: [(&str, &str); 6] = [
    ("TAILSTEP_APT_MIRROR", "TAILSTEP_APT_MIRROR"),
    ("TAILSTEP_CARGO_INDEX", "TAILSTEP_CARGO_INDEX"),
    ("TAILSTEP_GEM_SOURCE", "TAILSTEP_GEM_SOURCE"),
    ("TAILSTEP_GO_PROXY", "GOPROXY"),
    ("TAILSTEP_NPM_REGISTRY", "NPM_CONFIG_REGISTRY"),
    ("TAILSTEP_PIP_INDEX_URL", "PIP_INDEX_URL"),
];

/// Adds the mirrors that `find` knows to `source`, with the hosts that builds may then reach.
///
/// # Errors
/// One line that names the variable and says what to write.
pub(super) fn add(
    source: &mut PackageSource,
    find: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<()> {
    for (variable, inside) in MIRRORS {
        let Some(address) = find(variable).filter(|address| !address.trim().is_empty()) else {
            continue;
        };
        if source.directory.is_some() {
            bail!("{variable} is of no use beside TAILSTEP_PACKAGES; unset one of the two");
        }
        let address = address.trim().trim_end_matches('/');
        let (host, port) = place(address).with_context(|| variable.to_owned())?;
        source.registries.push(EgressRule { ports: vec![port], ..EgressRule::for_host(&host) });
        source.environment.push((inside.to_owned(), address.to_owned()));
        // pip wants to be told that a server without TLS is meant.
        if inside == "PIP_INDEX_URL" && address.starts_with("http:") {
            source.environment.push(("PIP_TRUSTED_HOST".to_owned(), host));
        }
    }
    Ok(())
}

/// The host and port of a plain address.
fn place(address: &str) -> anyhow::Result<(String, u16)> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b":/._~%+-".contains(&byte);
    if address.contains('@') {
        bail!("leave user and password out of the address, since every build would see them");
    }
    if !address.bytes().all(plain) {
        bail!("write it as https://HOST[:PORT]/PATH, without a query");
    }
    let uri: Uri = address.parse().context("write it as https://HOST[:PORT]/PATH")?;
    let usual = match uri.scheme_str() {
        Some("https") => 443,
        Some("http") => 80,
        Some(_) | None => bail!("it must begin with https:// or http://"),
    };
    let host = uri.host().filter(|host| !host.is_empty()).context("it names no host")?;
    Ok((host.to_ascii_lowercase(), uri.port_u16().unwrap_or(usual)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn with(set: &[(&str, &str)]) -> anyhow::Result<PackageSource> {
        let mut source = PackageSource::new();
        add(&mut source, |name| {
            set.iter().find(|(named, _)| *named == name).map(|(_, value)| (*value).to_owned())
        })?;
        Ok(source)
    }

    #[test]
    fn a_mirror_is_told_to_builds_and_opened_for_them() {
        assert_eq!(with(&[("TAILSTEP_GO_PROXY", " ")]).unwrap(), PackageSource::new());
        let source = with(&[
            ("TAILSTEP_PIP_INDEX_URL", "http://Mirror.example:8080/simple/"),
            ("TAILSTEP_NPM_REGISTRY", "https://npm.example"),
        ])
        .unwrap();
        let opened: Vec<_> =
            source.registries.iter().map(|rule| (rule.host.as_str(), rule.ports[0])).collect();
        assert_eq!(opened, [("npm.example", 443), ("mirror.example", 8080)]);
        let told: Vec<_> = source
            .environment
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                ("NPM_CONFIG_REGISTRY", "https://npm.example"),
                ("PIP_INDEX_URL", "http://Mirror.example:8080/simple"),
                ("PIP_TRUSTED_HOST", "mirror.example"),
            ]
        );
    }

    #[test]
    fn what_is_no_plain_address_is_refused_without_being_repeated() {
        for (bad, said) in [
            ("https://user:secret@npm.example/", "user and password"),
            ("npm.example", "https://"),
            ("ftp://npm.example", "must begin with"),
            ("https://", "TAILSTEP_NPM_REGISTRY"),
            ("https://npm.example/'; secret", "without a query"),
        ] {
            let error = format!("{:#}", with(&[("TAILSTEP_NPM_REGISTRY", bad)]).unwrap_err());
            assert!(error.starts_with("TAILSTEP_NPM_REGISTRY") && error.contains(said), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let mut source = PackageSource { directory: Some("/x".into()), ..PackageSource::new() };
        let error = add(&mut source, |_| Some("https://m.example".into())).unwrap_err();
        assert!(error.to_string().contains("TAILSTEP_PACKAGES"), "{error}");
    }
}
