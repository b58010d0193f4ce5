//! What there is to sell, in Postgres or SQLite.

use std::time::Duration;

use distlock::{Error, LockClient, Ticket};
use sqlx::{AnyPool, Row};

pub(crate) struct Stock(AnyPool);

#[derive(Debug)]
pub(crate) struct Article {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) left: i64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sale {
    /// So many are left.
    Sold(i64),
    SoldOut,
    /// There is no such article.
    Unknown,
    /// A later holder of the lock has written: this one had lost it.
    TooLate,
}

const ARTICLES: [(&str, &str); 3] = [
    ("lamp", "Lamp"),
    ("teapot", "Teapot"),
    ("umbrella", "Umbrella"),
];

impl Stock {
    /// Opens the stock, and fills it if it is new: one process at a time, for two that create a
    /// table at once disturb each other.
    pub(crate) async fn open(
        url: &str,
        items: u32,
        locks: &LockClient,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        sqlx::any::install_default_drivers();
        let stock = Self(AnyPool::connect(url).await?);
        let filled = locks.run("shop/schema", async |_| stock.fill(items).await);
        filled.await.map_err(Error::from)??;
        Ok(stock)
    }

    async fn fill(&self, items: u32) -> sqlx::Result<()> {
        for table in [
            "CREATE TABLE IF NOT EXISTS stock (id TEXT PRIMARY KEY, name TEXT NOT NULL,
             items BIGINT NOT NULL, fence_token BIGINT NOT NULL DEFAULT 0,
             fence_owner TEXT NOT NULL DEFAULT '')",
            "CREATE TABLE IF NOT EXISTS sale (item TEXT NOT NULL, token BIGINT NOT NULL)",
        ] {
            sqlx::query(table).execute(&self.0).await?;
        }
        for (id, name) in ARTICLES {
            let article = "INSERT INTO stock (id, name, items) VALUES ($1, $2, $3)
                           ON CONFLICT (id) DO NOTHING";
            let article = sqlx::query(article).bind(id).bind(name);
            article.bind(i64::from(items)).execute(&self.0).await?;
        }
        Ok(())
    }

    pub(crate) async fn articles(&self) -> sqlx::Result<Vec<Article>> {
        let rows = sqlx::query("SELECT id, name, items FROM stock ORDER BY name")
            .fetch_all(&self.0)
            .await?;
        let article = |row: sqlx::any::AnyRow| {
            Ok(Article {
                id: row.try_get(0)?,
                name: row.try_get(1)?,
                left: row.try_get(2)?,
            })
        };
        rows.into_iter().map(article).collect()
    }

    /// Sells one. It looks, takes the money and writes: whoever does so without the lock sells
    /// items that others have sold.
    pub(crate) async fn sell(&self, id: &str, ticket: &Ticket) -> sqlx::Result<Sale> {
        let left = sqlx::query_scalar::<_, i64>("SELECT items FROM stock WHERE id = $1")
            .bind(id)
            .fetch_optional(&self.0)
            .await?;
        let left = match left {
            None => return Ok(Sale::Unknown),
            Some(..=0) => return Ok(Sale::SoldOut),
            Some(left) => left - 1,
        };
        take_the_money().await;

        let token = ticket.token.as_u64() as i64;
        let mut transaction = self.0.begin().await?;
        let written = sqlx::query(
            "UPDATE stock SET items = $1, fence_token = $2, fence_owner = $3
             WHERE id = $4 AND (fence_token < $2 OR fence_token = $2 AND fence_owner = $3)",
        )
        .bind(left)
        .bind(token)
        .bind(ticket.owner.to_string())
        .bind(id)
        .execute(&mut *transaction)
        .await?;
        if written.rows_affected() == 0 {
            return Ok(Sale::TooLate);
        }
        sqlx::query("INSERT INTO sale (item, token) VALUES ($1, $2)")
            .bind(id)
            .bind(token)
            .execute(&mut *transaction)
            .await?;
        // Inside the lock: the next buyer has to see it.
        transaction.commit().await?;
        Ok(Sale::Sold(left))
    }

    pub(crate) async fn is_there(&self) -> bool {
        sqlx::query("SELECT 1").execute(&self.0).await.is_ok()
    }
}

async fn take_the_money() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}
