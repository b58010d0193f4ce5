//! Properties of the types that travel: what is valid survives serialisation, what is not is
//! refused on the way in.
#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Duration};

use lock_core::{Asker, Claim, FencingToken, HoldId, LockKey, OwnerId, Ttl};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The rule of names, written once more.
fn is_valid_name(name: &str) -> bool {
    (1..=255).contains(&name.len())
        && !name
            .chars()
            .any(|c| c < ' ' || ('\u{7f}'..='\u{9f}').contains(&c))
}

/// Texts of any kind, many of them around the limits.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        ".{0,40}",
        proptest::collection::vec(any::<char>(), 0..70).prop_map(String::from_iter),
        (250..260_usize, prop_oneof!["x", "\u{e9}", "\u{1f512}"])
            .prop_map(|(len, unit)| unit.repeat(len / unit.len())),
    ]
}

fn name() -> impl Strategy<Value = String> {
    text().prop_filter("a valid name", |name| is_valid_name(name))
}

fn claim() -> impl Strategy<Value = Claim> {
    let asker = (proptest::option::of(name()), name(), any::<u32>())
        .prop_map(|(label, host, pid)| Arc::new(Asker::new(label, host, pid).unwrap()));
    let ttl = 1..=Ttl::MAX.as_millis();
    (
        name(),
        any::<u128>(),
        any::<u128>(),
        ttl,
        any::<bool>(),
        asker,
    )
        .prop_map(|(key, owner, hold, ttl, queue, asker)| Claim {
            key: LockKey::new(key).unwrap(),
            owner: OwnerId::from_u128(owner),
            hold: HoldId::from_u128(hold),
            ttl: Ttl::from_millis(ttl).unwrap(),
            queue,
            asker,
        })
}

proptest! {
    /// A39, B73: a key is exactly the text it was made of, or it is refused; by any way in.
    #[test]
    fn a_key_is_its_text_or_refused(text in text()) {
        let valid = is_valid_name(&text);
        let read: Result<LockKey, _> = serde_json::from_value(json!(text));
        prop_assert_eq!(read.is_ok(), valid);
        prop_assert_eq!(text.parse::<LockKey>().is_ok(), valid);
        prop_assert_eq!(LockKey::try_from(text.clone()).is_ok(), valid);
        if let Ok(key) = read {
            prop_assert_eq!(key.as_str(), text.as_str());
            prop_assert_eq!(key.to_string(), text.as_str());
            prop_assert_eq!(serde_json::to_value(&key).unwrap(), json!(text));
        }
    }

    /// A39: labels and host names keep the same rule.
    #[test]
    fn an_asker_is_checked_on_the_way_in(label in proptest::option::of(text()), host in text(), pid: u32) {
        let valid = label.as_deref().is_none_or(is_valid_name) && is_valid_name(&host);
        let form = json!({ "label": label, "host": host, "pid": pid });
        let read: Result<Asker, _> = serde_json::from_value(form.clone());
        prop_assert_eq!(read.is_ok(), valid);
        if let Ok(asker) = read {
            prop_assert_eq!(serde_json::to_value(&asker).unwrap(), form);
            prop_assert_eq!(asker, Asker::new(label, host, pid).unwrap());
        }
    }

    /// A38, B76, B108: any number of milliseconds is a ttl exactly when it is in the range.
    #[test]
    fn a_ttl_is_in_range_or_refused(millis in prop_oneof![any::<u64>(), 0..100_u64, Ttl::MAX.as_millis() - 5..Ttl::MAX.as_millis() + 5]) {
        let valid = (1..=366 * 24 * 3600 * 1000).contains(&millis);
        let read: Result<Ttl, _> = serde_json::from_value(json!(millis));
        prop_assert_eq!(read.is_ok(), valid);
        prop_assert_eq!(Ttl::from_millis(millis).is_ok(), valid);
        prop_assert_eq!(Ttl::new(Duration::from_millis(millis)).is_ok(), valid);
        if let Ok(ttl) = read {
            prop_assert_eq!(ttl.as_millis(), millis);
            prop_assert_eq!(ttl.as_duration(), Duration::from_millis(millis));
            prop_assert_eq!(serde_json::to_value(ttl).unwrap(), json!(millis));
        }
    }

    /// A38, B108: a ttl is rounded up to the next millisecond, never down, never to zero.
    #[test]
    fn a_ttl_is_rounded_up(seconds in prop_oneof![any::<u64>(), 0..40_000_000_u64], nanos in 0..1_000_000_000_u32) {
        let asked = Duration::new(seconds, nanos);
        match Ttl::new(asked) {
            Ok(ttl) => {
                prop_assert!(ttl.as_duration() >= asked);
                prop_assert!(ttl.as_duration() - asked < Duration::from_millis(1));
            }
            Err(_) => prop_assert!(asked.is_zero() || asked > Ttl::MAX.as_duration() - Duration::from_millis(1)),
        }
    }

    /// Negative, fractional and textual ttls are no ttls. B76.
    #[test]
    fn a_ttl_is_a_whole_number(negative in i64::MIN..0, fraction in 0.001..0.999_f64) {
        for form in [json!(negative), json!(fraction), json!(negative.to_string()), Value::Null] {
            prop_assert!(serde_json::from_value::<Ttl>(form).is_err());
        }
    }

    /// B95: a claim that went through its serialised form is the same claim.
    #[test]
    fn a_claim_survives_serialisation(claim in claim()) {
        let form = serde_json::to_string(&claim).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Claim>(&form).unwrap(), &claim);
        let value: Value = serde_json::from_str(&form).unwrap();
        prop_assert_eq!(serde_json::from_value::<Claim>(value).unwrap(), claim);
    }

    /// B95: a claim with one part that cannot be is refused as a whole.
    #[test]
    fn a_claim_is_checked_on_the_way_in(claim in claim(), bad in text(), part in 0..7_usize) {
        let mut form = serde_json::to_value(&claim).unwrap();
        prop_assume!(!is_valid_name(&bad));
        match part {
            0 => form["key"] = json!(bad),
            1 => form["owner"] = json!("0123"),
            2 => form["hold"] = json!(format!("{}g", &claim.hold.to_string()[1..])),
            3 => form["ttl"] = json!(0),
            4 => form["ttl"] = json!(Ttl::MAX.as_millis() + 1),
            5 => form["asker"]["host"] = json!(bad),
            _ => form["asker"]["label"] = json!(bad),
        }
        prop_assert!(serde_json::from_value::<Claim>(form).is_err());
    }

    /// A40: ids keep all of their 128 bits, and are written in one way.
    #[test]
    fn an_id_keeps_every_bit(number: u128) {
        let (owner, hold) = (OwnerId::from_u128(number), HoldId::from_u128(number));
        prop_assert_eq!(owner.to_string(), format!("{number:032x}"));
        prop_assert_eq!(owner.to_string().parse::<OwnerId>().unwrap().as_u128(), number);
        prop_assert_eq!(hold.to_string().parse::<HoldId>().unwrap(), hold);
    }

    /// B67: a token is any number but zero, and is ordered as the number is, up to the last bit.
    #[test]
    fn a_token_is_its_number(a: u64, b: u64) {
        for number in [a, b] {
            let token = FencingToken::new(number);
            prop_assert_eq!(token.is_none(), number == 0);
            let read: Option<FencingToken> = serde_json::from_str(&number.to_string()).ok();
            prop_assert_eq!(read, token);
            prop_assert_eq!(number.to_string().parse().ok(), token);
            prop_assert_eq!(token.map_or(0, FencingToken::as_u64), number);
        }
        if let (Some(x), Some(y)) = (FencingToken::new(a), FencingToken::new(b)) {
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
        }
    }
}
