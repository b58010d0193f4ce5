//! `distlock serve`: the locks of a store, as they change, as a web page.

mod access;
mod page;
mod routes;

use std::{fs, future::IntoFuture, net::SocketAddr, path::PathBuf, time::Instant};

use metrics::{counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::{
    net::TcpListener,
    sync::watch::{self, Sender},
};

use self::{
    access::Access,
    routes::{Site, routes},
};
use crate::{
    args::Global,
    failure::{Failure, Kind},
    observe::{Observer, View},
    show,
    signals::Signals,
    verbs::connect,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// Only those whose name starts with this
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,

    /// Where to listen; on port 0 on any that is free
    ///
    /// Whoever reaches it sees names, holders and waiters: on other addresses than loopback put
    /// something in front that asks who comes.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,

    /// Let those release locks who know the secret in this file, of 16 bytes at least
    #[arg(long, value_name = "FILE")]
    allow_release: Option<PathBuf>,
}

/// What was seen last.
#[derive(Debug)]
pub(crate) struct Seen {
    view: View,
    at: Instant,
    /// Why there is nothing newer.
    trouble: Option<String>,
}

pub(crate) async fn serve(options: Serve, global: Global) -> Result<i32, Failure> {
    let access = options.allow_release.as_deref().map(secret).transpose()?;
    // Before the client is made, which counts with the recorder that is there.
    let recorder = PrometheusBuilder::new()
        .install_recorder()
        .map_err(|why| Failure::new(Kind::Internal, format!("cannot count: {why}")))?;
    describe();
    let client = connect(&global).await?;
    let mut observer = Observer::new(client.clone(), options.prefix);
    let (sender, seen) = watch::channel(Seen {
        view: observer.look().await?,
        at: Instant::now(),
        trouble: None,
    });
    let cannot_listen = |why| {
        let what = format!("cannot listen on {}: {why}", options.listen);
        Failure::new(Kind::Usage, what)
    };
    let mut signals = Signals::forwarded()
        .map_err(|why| Failure::new(Kind::Internal, format!("cannot hear signals: {why}")))?;
    let listener = TcpListener::bind(options.listen)
        .await
        .map_err(cannot_listen)?;
    let address = listener.local_addr().map_err(cannot_listen)?;
    show::print(&format!("http://{address}/"));

    let site = Site {
        client: client.clone(),
        seen,
        access,
        recorder,
        is_local: address.ip().is_loopback(),
    };
    tokio::select! {
        served = axum::serve(listener, routes(site)).into_future() => {
            served.map_err(cannot_listen)?;
        }
        () = observe(observer, sender) => {}
        _ = signals.next_to_end() => {}
    }
    client.shutdown().await;
    Ok(0)
}

async fn observe(mut observer: Observer, sender: Sender<Seen>) {
    loop {
        let looked = observer.look().await;
        sender.send_modify(|seen| match looked {
            Ok(view) => {
                count(&view);
                *seen = Seen {
                    view,
                    at: Instant::now(),
                    trouble: None,
                };
            }
            Err(why) => seen.trouble = Some(why.to_string()),
        });
    }
}

fn secret(file: &std::path::Path) -> Result<Access, Failure> {
    let shown = file.display();
    let text = fs::read_to_string(file)
        .map_err(|why| Failure::new(Kind::Usage, format!("cannot read {shown}: {why}")))?;
    Access::new(text.trim()).ok_or_else(|| {
        let least = Access::LEAST;
        let what = format!("the secret in {shown} is shorter than {least} bytes");
        Failure::new(Kind::Usage, what)
    })
}

fn describe() {
    describe_gauge!(
        "distlock_seen_held",
        "Locks that were held at the last look."
    );
    describe_gauge!("distlock_seen_waiters", "Waiters at the last look.");
    describe_counter!("distlock_seen_looks_total", "Looks at the store.");
}

fn count(view: &View) {
    let held = view.locks.iter().filter(|info| info.holder.is_some());
    let waiters: usize = view.locks.iter().map(|info| info.waiters.len()).sum();
    gauge!("distlock_seen_held").set(held.count() as f64);
    gauge!("distlock_seen_waiters").set(waiters as f64);
    counter!("distlock_seen_looks_total").increment(1);
}
