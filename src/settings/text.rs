//! Values that are a duration or a word.

/// A duration, `none` or `forever`.
pub(super) mod wait {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, de::Error};

    use crate::Wait;

    pub(in crate::settings) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Wait, D::Error> {
        let text = String::deserialize(from)?;
        match text.as_str() {
            "none" => Ok(Wait::No),
            "forever" => Ok(Wait::Forever),
            _ => match super::duration(&text) {
                // Not as `Wait::No`: whoever writes a zero may have meant the opposite.
                Some(Duration::ZERO) => Err(D::Error::custom(
                    "it is zero; it has to be 1ms or longer, `none` or `forever`",
                )),
                Some(limit) => Ok(Wait::AtMost(limit)),
                None => Err(D::Error::custom(format!(
                    "{text:?} is not a duration such as 500ms or 30s, `none` or `forever`"
                ))),
            },
        }
    }
}

/// A duration, or `never`.
#[cfg(feature = "postgres")]
pub(super) mod interval {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, de::Error};

    pub(in crate::settings) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let text = String::deserialize(from)?;
        match (text.as_str(), super::duration(&text)) {
            ("never", _) => Ok(None),
            (_, Some(interval)) => Ok(Some(interval)),
            (_, None) => Err(D::Error::custom(format!(
                "{text:?} is not a duration such as 500ms or 30s, or `never`"
            ))),
        }
    }
}

fn duration(text: &str) -> Option<std::time::Duration> {
    humantime_serde::re::humantime::parse_duration(text).ok()
}
