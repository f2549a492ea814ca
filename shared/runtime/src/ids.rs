//! New names: public ids and nonces.

use tailstep_core::ids::UnixMs;

const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// A new id: `prefix`, then 26 characters of Crockford's base 32, of which the first ten are the time
/// and the rest is random (the ULID layout). Ids of one kind sort by the time of their creation.
pub fn new_id(prefix: &str, now_ms: UnixMs) -> String {
    spell(prefix, (u128::from(now_ms) << 80) | (random_u128() >> 48))
}

/// 128 random bits as text, to recognise one's own write.
pub fn nonce() -> String {
    format!("{:032x}", random_u128())
}

fn spell(prefix: &str, value: u128) -> String {
    let mut id = String::with_capacity(prefix.len() + 26);
    id.push_str(prefix);
    for place in (0..26).rev() {
        // Five bits at a time; the mask keeps the index inside the table.
        id.push(char::from(DIGITS[((value >> (place * 5)) & 31) as usize]));
    }
    id
}

fn random_u128() -> u128 {
    let mut bytes = [0; 16];
    // Without randomness from the system, ids would collide: nothing may go on.
    assert!(getrandom::fill(&mut bytes).is_ok(), "the system gives no random numbers");
    u128::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_differ() {
        let ids: Vec<String> = [1, 2, 1 << 40].map(|ms| new_id("sesn_", ms)).into();
        assert!(ids.is_sorted());
        assert_ne!(new_id("a_", 5), new_id("a_", 5));
        assert_eq!(new_id("sesn_", 0).len(), 31);
    }
}
