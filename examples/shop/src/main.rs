//! A small shop: three articles, and as many buyers as there are.
//!
//! Any number of processes sell from one stock. The lock of an article keeps them from selling an
//! item twice; the token that comes with it keeps one that was too slow from writing.
//!
//! ```text
//! cargo run -p shop                                       locks and stock in files of its own
//! DISTLOCK_URL=redis://localhost cargo run -p shop --features redis -- --stock postgres://localhost/shop
//! ```

mod options;
mod page;
mod routes;
mod stock;

use std::{error::Error, sync::Arc, time::Duration};

use clap::Parser;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::{net::TcpListener, signal};

use crate::{options::Options, routes::Shop, stock::Stock};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    // Before the client is made, which counts with the recorder that is there.
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let locks = options.locks()?.connect().await?;
    let stock = Stock::open(&options.stock()?, options.items, &locks).await?;
    let listener = TcpListener::bind(options.listen).await?;
    println!("http://{}/", listener.local_addr()?);

    let shop = Arc::new(Shop {
        locks: locks.clone(),
        stock,
        metrics,
    });
    axum::serve(listener, routes::routes(shop))
        .with_graceful_shutdown(asked_to_stop())
        .await?;
    // No request is under way any more, and no lock held.
    locks.drain(Duration::from_secs(5)).await;
    Ok(())
}

async fn asked_to_stop() {
    let terminate = async {
        match signal::unix::signal(signal::unix::SignalKind::terminate()) {
            Ok(mut asked) => asked.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = signal::ctrl_c() => {}
        _ = terminate => {}
    }
}
