//! The slot of a key in a cluster.

/// How many slots a cluster has.
pub(super) const SLOTS: u16 = 16_384;

/// The hash tag of a key: the text between its first `{` and the next `}`, if it is not empty. Without one, the whole key
/// determines the slot.
pub(super) fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

pub(super) fn slot_of(key: &str) -> u16 {
    crc16(hash_tag(key).unwrap_or(key).as_bytes()) % SLOTS
}

/// CRC-16/XMODEM, from the specification of Redis Cluster.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let mut crc = crc ^ (u16::from(*byte) << 8);
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
        crc
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        // From `CLUSTER KEYSLOT`.
        for (key, slot) in
            [("foo", 12_182), ("{user1000}.following", 3_443), ("foo{}{bar}", 8_363), ("foo{{bar}}zap", 4_015)]
        {
            assert_eq!(slot_of(key), slot, "{key}");
        }
        assert_eq!(slot_of("foo{bar}{zap}"), slot_of("bar"));
    }
}
