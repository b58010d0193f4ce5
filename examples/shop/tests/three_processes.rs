//! Three processes of the shop sell one stock, to the last item and no further, behind each
//! store; one of them is killed in the midst of it.

#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use integration_tests::{
    process::Process,
    servers::{etcd::EtcdCluster, postgres::PostgresServer, redis::RedisServer},
};
use sqlx::{AnyConnection, Connection};
use tempfile::TempDir;
use ureq::Agent;

const ITEMS: u32 = 90;
const BUYERS: usize = 12;

/// One process, and where it is.
struct Shop {
    process: Process,
    url: String,
}

impl Shop {
    fn start(locks: &str, stock: &str) -> Self {
        let mut process = Process::start(
            Command::new(env!("CARGO_BIN_EXE_shop"))
                .args(["--listen", "127.0.0.1:0", "--stock", stock])
                .args(["--items", &ITEMS.to_string()])
                .env("DISTLOCK_URL", locks)
                // How long the others wait for the one that is killed.
                .env("DISTLOCK_TTL", "2s")
                .stdout(Stdio::piped()),
        );
        let output = process.child().stdout.take().unwrap();
        let mut url = String::new();
        BufReader::new(output).read_line(&mut url).unwrap();
        assert!(url.starts_with("http://"), "it did not start: {url:?}");
        let url = url.trim_end_matches(['/', '\n']).to_owned();
        Self { process, url }
    }
}

fn agent() -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(30)))
        .build()
        .into()
}

/// Everybody buys until the article is sold out.
async fn sells_exactly(locks: &str, stock: &str) {
    let mut shops: Vec<_> = (0..3).map(|_| Shop::start(locks, stock)).collect();
    let urls: Arc<[String]> = shops.iter().map(|shop| shop.url.clone()).collect();
    let sold = Arc::new(AtomicU32::new(0));
    let unanswered = Arc::new(AtomicU32::new(0));
    let killed = Arc::new(AtomicBool::new(false));
    let buyers: Vec<_> = (0..BUYERS)
        .map(|number| {
            let (urls, sold) = (urls.clone(), sold.clone());
            let (unanswered, killed) = (unanswered.clone(), killed.clone());
            thread::spawn(move || {
                let agent = agent();
                for round in number.. {
                    let shop = &urls[round % urls.len()];
                    let buy = agent.post(format!("{shop}/buy/umbrella")).send("");
                    match buy.map(|answer| answer.status().as_u16()) {
                        Ok(200) => drop(sold.fetch_add(1, SeqCst)),
                        Ok(410) => return,
                        Ok(503) => {}
                        Ok(other) => panic!("{other}"),
                        Err(why) => {
                            assert!(killed.load(SeqCst) && *shop == urls[0], "{why}");
                            unanswered.fetch_add(1, SeqCst);
                        }
                    }
                }
            })
        })
        .collect();

    while sold.load(SeqCst) < ITEMS / 3 {
        assert!(
            !buyers.iter().all(thread::JoinHandle::is_finished),
            "sold out"
        );
        thread::sleep(Duration::from_millis(5));
    }
    killed.store(true, SeqCst);
    shops[0].process.kill();
    for buyer in buyers {
        buyer.join().unwrap();
    }

    sqlx::any::install_default_drivers();
    let mut stock = AnyConnection::connect(stock).await.unwrap();
    let mut count = async |query: &'static str| {
        let count = sqlx::query_scalar::<_, i64>(query);
        count.fetch_one(&mut stock).await.unwrap()
    };
    let items = i64::from(ITEMS);
    assert_eq!(
        count("SELECT items FROM stock WHERE id = 'umbrella'").await,
        0
    );
    assert_eq!(
        count("SELECT COUNT(*) FROM sale WHERE item = 'umbrella'").await,
        items
    );
    // Each had another token: no two sales were under one lock.
    assert_eq!(count("SELECT COUNT(DISTINCT token) FROM sale").await, items);
    // A sale whose answer went down with its process counts, too.
    let told = i64::from(sold.load(SeqCst));
    let lost = items - told;
    assert!(
        (0..=i64::from(unanswered.load(SeqCst))).contains(&lost),
        "{told} were told"
    );
    // The others go on.
    for shop in &shops[1..] {
        let health = agent().get(format!("{}/healthz", shop.url)).call().unwrap();
        assert_eq!(health.status(), 200);
    }
}

#[tokio::test]
async fn behind_sqlite() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str| format!("sqlite://{}", folder.path().join(name).display());
    sells_exactly(&file("locks.db"), &(file("stock.db") + "?mode=rwc")).await;
}

#[tokio::test]
async fn behind_redis() {
    let (locks, stock) = (RedisServer::start(), PostgresServer::start());
    sells_exactly(&locks.url(), &stock.url()).await;
}

#[tokio::test]
async fn behind_postgres() {
    let server = PostgresServer::start();
    sells_exactly(&server.url(), &server.url()).await;
}

#[tokio::test]
async fn behind_etcd() {
    let (locks, stock) = (EtcdCluster::one(), PostgresServer::start());
    sells_exactly(&locks.url(), &stock.url()).await;
}

/// What a stranger sends is refused, and what is shown holds no secret.
#[test]
fn strangers_are_refused() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str| format!("sqlite://{}", folder.path().join(name).display());
    let shop = Shop::start(&file("locks.db"), &(file("stock.db") + "?mode=rwc"));
    let (agent, url) = (agent(), &shop.url);
    let status = |answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>| {
        answer.unwrap().status().as_u16()
    };
    let buy = |item: &str| agent.post(format!("{url}/buy/{item}"));
    assert_eq!(status(buy("umbrella").send("")), 200);
    let cross = buy("umbrella").header("Sec-Fetch-Site", "cross-site");
    assert_eq!(status(cross.send("")), 403);
    let cross = buy("umbrella").header("Origin", "http://example.org");
    assert_eq!(status(cross.send("")), 403);
    assert_eq!(status(buy("umbrella").send("x".repeat(2000))), 413);
    assert_eq!(status(buy("unicorn").send("")), 404);
    assert_eq!(status(buy(&"x".repeat(400)).send("")), 404);
    assert_eq!(status(buy("%00").send("")), 404);
    assert_eq!(status(agent.get(format!("{url}/buy/umbrella")).call()), 405);

    let page = |path: &str| {
        let mut answer = agent.get(format!("{url}{path}")).call().unwrap();
        answer.body_mut().read_to_string().unwrap()
    };
    let front = page("/");
    assert!(
        front.contains("Umbrella") && front.contains(">89<"),
        "{front}"
    );
    let metrics = page("/metrics");
    let granted = "distlock_acquires_total{store=\"sqlite\",client=\"\",outcome=\"granted\"}";
    // The schema, the umbrella, and what there was none of.
    assert!(metrics.contains(&format!("{granted} 3\n")), "{metrics}");
    assert_eq!(page("/healthz"), "ok\n");
}
