//! `distlock doctor`: is this store fit for locks, and what is to be known about it?

use std::time::{Duration, Instant};

use distlock::{Error, Finding, LockClient, LockKey, OwnerId, Severity};
use serde::Serialize;

use crate::{
    args::Global,
    failure::{Failure, Kind, with_causes},
    show,
    verbs::connect,
};

/// What was found, from the store's setup to a lock that was really taken.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) store: &'static str,
    /// The worst of the findings.
    pub(crate) result: Severity,
    pub(crate) findings: Vec<Finding>,
}

pub(crate) async fn doctor(strict: bool, global: Global) -> Result<i32, Failure> {
    let client = connect(&global).await?;
    let report = examine(&client).await?;
    client.shutdown().await;
    show::print(&if global.json {
        serde_json::json!(report).to_string()
    } else {
        show::report(&report)
    });
    let bearable = match strict {
        true => Severity::Note,
        false => Severity::Warning,
    };
    Ok(match report.result <= bearable {
        true => 0,
        false => Kind::Unhealthy.exit_code(global.exit_code_base),
    })
}

async fn examine(client: &LockClient) -> Result<Report, Failure> {
    let examined = client.store().examine().await;
    let mut findings = examined.map_err(|source| Error::Store {
        operation: "examine the store",
        key: None,
        source,
    })?;
    // A name of its own: nobody waits for it, and two doctors do not meet.
    let key = LockKey::new(format!("distlock-doctor-{}", OwnerId::random()))
        .map_err(|why| Failure::from(Error::from(why)))?;
    findings.push(round_trip(client, &key).await?);
    findings.push(take_and_release(client, &key).await);
    Ok(Report {
        store: client.capabilities().store,
        result: findings
            .iter()
            .map(|f| f.severity)
            .max()
            .unwrap_or(Severity::Ok),
        findings,
    })
}

/// How long a request takes.
async fn round_trip(client: &LockClient, key: &LockKey) -> Result<Finding, Failure> {
    const REQUESTS: usize = 21;
    const SLOW: Duration = Duration::from_millis(100);
    const TOO_SLOW: Duration = Duration::from_secs(1);
    let mut times = Vec::with_capacity(REQUESTS);
    for _ in 0..REQUESTS {
        let sent = Instant::now();
        client.inspect(key).await?;
        times.push(sent.elapsed());
    }
    times.sort_unstable();
    let (median, longest) = (times[REQUESTS / 2], times[REQUESTS - 1]);
    let what =
        format!("a request takes {median:.1?} (the median of {REQUESTS}), {longest:.1?} at most");
    Ok(if median >= TOO_SLOW {
        let meaning = "a renewal that fails has little time to be repeated; locks may be lost";
        Finding::warning("round trip", what, meaning)
    } else if longest >= SLOW {
        let meaning = "take a ttl of some dozens of round trips at least";
        Finding::note("round trip", what, meaning)
    } else {
        Finding::ok("round trip", what)
    })
}

async fn take_and_release(client: &LockClient, key: &LockKey) -> Finding {
    let sent = Instant::now();
    let taken = async {
        let guard = client
            .lock(key)
            .label("distlock doctor")
            .try_acquire()
            .await?;
        let token = guard.token();
        guard.release().await.map(|()| token)
    };
    match taken.await {
        Ok(token) => Finding::ok(
            "lock",
            format!(
                "a lock was taken and released in {:.1?}, with token {token}",
                sent.elapsed()
            ),
        ),
        Err(why) => Finding::failure(
            "lock",
            with_causes(&why),
            "no lock can be used on this store as it is now",
        ),
    }
}
