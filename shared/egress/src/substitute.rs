//! Placeholders to secrets, on the way out, in headers only: a value in a URL would stand in the
//! origin's logs, and one in a body would be data.

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{
    authority::Host,
    policy::Grant,
    refusal::Refusal,
    request::Headers,
    secret::{PLACEHOLDER_START, Placeholders},
};

/// Whether a secret was put in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filled {
    Nothing,
    Secret,
}

/// Puts the secrets of `grant` into `headers`.
///
/// A placeholder that the request may not use is refused, wherever it stands: it means that somebody
/// is sending credentials to the wrong place.
pub(crate) fn fill(
    headers: &mut Headers,
    url: &str,
    grant: &Grant,
    host: &Host,
    placeholders: &Placeholders,
) -> Result<Filled, Refusal> {
    let pairs: Vec<(&str, &str)> = grant
        .secrets
        .iter()
        .filter_map(|secret| Some((placeholders.get(&secret.variable)?, secret.value.reveal())))
        .collect();
    let foreign = |text: &[u8]| {
        let own = |at: &str| pairs.iter().any(|(placeholder, _)| *placeholder == at);
        placeholders.all().find(|(_, at)| !own(at) && contains(text, at.as_bytes()))
    };
    let refused = |variable: &str| {
        Refusal::policy(format!("the placeholder of {variable} may not be sent to {host}"))
    };
    if let Some((variable, _)) = foreign(url.as_bytes()) {
        return Err(refused(variable));
    }
    let mut filled = Filled::Nothing;
    for (name, value) in headers {
        let basic = if name == "authorization" { basic(value) } else { None };
        let text = basic.as_deref().unwrap_or(value);
        if let Some((variable, _)) = foreign(text) {
            return Err(refused(variable));
        }
        if !contains(text, PLACEHOLDER_START.as_bytes()) {
            continue;
        }
        let mut new = text.to_vec();
        for (placeholder, secret) in &pairs {
            new = replaced(&new, placeholder.as_bytes(), secret.as_bytes());
        }
        if new == text {
            continue;
        }
        filled = Filled::Secret;
        *value = match basic {
            Some(_) => format!("Basic {}", STANDARD.encode(new)).into_bytes(),
            None => new,
        };
    }
    Ok(filled)
}

/// What stands in `Basic` credentials.
fn basic(value: &[u8]) -> Option<Vec<u8>> {
    let (scheme, rest) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    STANDARD.decode(rest.trim_ascii()).ok()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn replaced(text: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.windows(from.len()).position(|window| window == from) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{policy::RuleSecret, secret::Secret};

    const VALUE: &str = "sk-live-0123456789";

    fn fixture() -> (Placeholders, Grant) {
        let mut placeholders = Placeholders::default();
        placeholders.make("KEY").unwrap();
        placeholders.make("OTHER").unwrap();
        let secret = RuleSecret { variable: "KEY".to_owned(), value: Secret::new(VALUE) };
        let grant =
            Grant { by: String::new(), narrowed: false, searched: true, secrets: vec![secret] };
        (placeholders, grant)
    }

    fn filled(name: &str, value: &str, url: &str) -> Result<(Filled, String), Refusal> {
        let (placeholders, grant) = fixture();
        let put = |text: &str| {
            let text = text.replace("{KEY}", placeholders.get("KEY").unwrap());
            text.replace("{OTHER}", placeholders.get("OTHER").unwrap())
        };
        let value = match value.strip_prefix("Basic ") {
            Some(inside) => format!("Basic {}", STANDARD.encode(put(inside))),
            None => put(value),
        };
        let mut headers = vec![(name.to_owned(), value.into_bytes())];
        let host = Host::Name("a.test".to_owned());
        let done = fill(&mut headers, &put(url), &grant, &host, &placeholders)?;
        Ok((done, String::from_utf8(headers.remove(0).1).unwrap()))
    }

    #[test]
    fn headers_get_their_values() {
        let found = filled("authorization", "Bearer {KEY}", "/").unwrap();
        assert_eq!(found, (Filled::Secret, format!("Bearer {VALUE}")));
        let found = filled("x-api-key", "{KEY},{KEY}", "/").unwrap();
        assert_eq!(found, (Filled::Secret, format!("{VALUE},{VALUE}")));
        let basic = format!("Basic {}", STANDARD.encode(format!("user:{VALUE}")));
        assert_eq!(
            filled("authorization", "Basic user:{KEY}", "/").unwrap(),
            (Filled::Secret, basic)
        );
        assert_eq!(filled("x", "tailstep-placeholder-00", "/").unwrap().0, Filled::Nothing);
        // In a URL an own placeholder stays what it is.
        assert_eq!(filled("x", "y", "/?key={KEY}").unwrap().0, Filled::Nothing);
    }

    #[test]
    fn foreign_placeholders_are_refused_wherever_they_stand() {
        for (name, value, url) in [
            ("x-api-key", "{OTHER}", "/"),
            ("authorization", "Basic user:{OTHER}", "/"),
            ("x", "{KEY} {OTHER}", "/"),
            ("x", "y", "/?key={OTHER}"),
        ] {
            let why = filled(name, value, url).unwrap_err().why;
            assert_eq!(why, "the placeholder of OTHER may not be sent to a.test");
        }
    }
}
