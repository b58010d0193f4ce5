//! An application that is given its store: any in production, memory in its tests.
//!
//! `cargo run --example inject`, or with a URL: `… --features sqlite --example inject sqlite:///tmp/locks.db`

use std::{
    env,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use distlock::{DistributedLock, LockClient};

/// Sells what is in stock. It knows the contract of a lock, and no store.
struct Shop {
    locks: LockClient,
    stock: AtomicU32,
}

impl Shop {
    fn new(store: Arc<dyn DistributedLock>, stock: u32) -> Self {
        Self {
            locks: LockClient::new(store),
            stock: AtomicU32::new(stock),
        }
    }

    /// Sells one item; `false` when none is left.
    async fn sell(&self) -> Result<bool, distlock::Error> {
        let sold = self.locks.run("stock", async |_| {
            let left = self.stock.load(Relaxed);
            pay().await;
            if left > 0 {
                self.stock.store(left - 1, Relaxed);
            }
            left > 0
        });
        Ok(sold.await?)
    }
}

/// Takes its time, in which others look at the stock as well.
async fn pay() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).unwrap_or("memory:".to_owned());
    let shop = Shop::new(distlock::open(&url).await?, 3);
    while shop.sell().await? {
        println!("sold one, {} left", shop.stock.load(Relaxed));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use distlock::MemoryLock;

    use super::*;

    #[tokio::test]
    async fn a_stock_is_sold_once() {
        let shop = Shop::new(Arc::new(MemoryLock::new()), 5);
        let sales = futures_util::future::join_all((0..20).map(|_| shop.sell())).await;
        let sold = sales.into_iter().filter(|sale| matches!(sale, Ok(true)));
        assert_eq!(sold.count(), 5);
        assert_eq!(shop.stock.load(Relaxed), 0);
    }

    #[tokio::test]
    async fn a_sale_waits_for_the_lock() {
        let store = MemoryLock::new();
        let shop = Shop::new(Arc::new(store.handle()), 1);
        let stocktaking = LockClient::new(Arc::new(store));
        let guard = stocktaking.acquire("stock").await.unwrap();

        let sale = shop.sell();
        tokio::pin!(sale);
        let early = tokio::time::timeout(Duration::from_millis(50), &mut sale).await;
        assert!(early.is_err(), "sold during stocktaking");

        guard.release().await.unwrap();
        assert!(sale.await.unwrap());
    }
}
