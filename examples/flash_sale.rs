//! A flash sale: 100 items, and 8 buyers in processes of their own, who buy one item after the
//! other. A purchase reads the stock, checks it, pays, and writes the stock back; first without a
//! lock, then with one.
//!
//! `cargo run --features sqlite --example flash_sale`

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    fs::{self, OpenOptions},
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

const ITEMS: u32 = 100;
const BUYERS: u32 = 8;
/// The time in which other buyers see the same stock.
const PAYMENT: Duration = Duration::from_millis(3);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => demo(),
        ["buy", buyer, shop, store] => shopping(buyer, Shop::at(shop), store),
        _ => Err("flash_sale takes no arguments".into()),
    }
}

/// Holds the sale twice and compares what was sold with what there was.
fn demo() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let store = format!("sqlite://{}", folder.path().join("locks.db").display());

    println!("{ITEMS} items, {BUYERS} buyers, without a lock:");
    let sold = sale(&folder.path().join("without"), "")?;
    if sold <= ITEMS {
        return Err(format!("{sold} sold: this must oversell, or it shows nothing").into());
    }
    let without = format!("oversold: {sold} sold, of {ITEMS}");
    println!("  {without}\n");

    println!("{ITEMS} items, {BUYERS} buyers, with a lock:");
    let sold = sale(&folder.path().join("with"), &store)?;
    if sold != ITEMS {
        return Err(format!("{sold} sold, of {ITEMS}, under the lock").into());
    }
    println!("  exactly {sold} sold, of {ITEMS}\n");

    println!("without a lock: {without}");
    println!("with a lock: exactly {sold}");
    Ok(())
}

/// One sale with all its buyers; how many items were sold.
fn sale(folder: &Path, store: &str) -> Result<u32> {
    fs::create_dir(folder)?;
    let shop = Shop::at(folder);
    shop.set_stock(ITEMS, "shop")?;

    let mut buyers = Vec::new();
    for number in 1..=BUYERS {
        buyers.push(Buyer::start(number, folder, store)?);
    }
    for buyer in &mut buyers {
        buyer.is_ready()?;
    }
    for buyer in &mut buyers {
        buyer.go()?;
    }
    for buyer in buyers {
        buyer.ends_well()?;
    }

    let orders = shop.orders()?;
    for (buyer, items) in &orders {
        let first: Vec<_> = items.iter().take(8).map(u32::to_string).collect();
        let more = if items.len() > 8 { ", …" } else { "" };
        let number = items.len();
        println!(
            "  {buyer} bought {number:>3}: items {}{more}",
            first.join(", ")
        );
    }
    Ok(orders.values().map(|items| items.len() as u32).sum())
}

/// The process of a buyer, seen from the shop.
struct Buyer(Child);

impl Buyer {
    fn start(number: u32, shop: &Path, store: &str) -> Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command
            .args(["buy", &format!("buyer {number}")])
            .arg(shop)
            .arg(store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Ok(Self(command.spawn()?))
    }

    fn is_ready(&mut self) -> Result<()> {
        let mut said = String::new();
        BufReader::new(self.0.stdout.take().ok_or("no pipe")?).read_line(&mut said)?;
        (said == "ready\n")
            .then_some(())
            .ok_or("a buyer cannot start".into())
    }

    fn go(&mut self) -> Result<()> {
        Ok(writeln!(self.0.stdin.take().ok_or("no pipe")?, "go")?)
    }

    fn ends_well(mut self) -> Result<()> {
        let status = self.0.wait()?;
        status
            .success()
            .then_some(())
            .ok_or(format!("a buyer ended with {status}").into())
    }
}

/// What a buyer's process does.
#[tokio::main(flavor = "current_thread")]
async fn shopping(buyer: &str, shop: Shop, store: &str) -> Result<()> {
    let locks = match store {
        "" => None,
        url => Some(distlock::connect(url).await?),
    };
    println!("ready");
    if io::stdin().read_to_string(&mut String::new())? == 0 {
        return Ok(()); // the sale is called off
    }
    loop {
        let bought = match &locks {
            None => shop.buy(buyer).await?,
            Some(locks) => {
                locks
                    .run("stock", async |_| shop.buy(buyer).await)
                    .await??
            }
        };
        if !bought {
            return Ok(());
        }
    }
}

/// A stock and a list of orders, in files.
struct Shop {
    stock: PathBuf,
    orders: PathBuf,
}

impl Shop {
    fn at(folder: impl AsRef<Path>) -> Self {
        Self {
            stock: folder.as_ref().join("stock"),
            orders: folder.as_ref().join("orders"),
        }
    }

    /// Buys one item; `false` when there is none.
    async fn buy(&self, buyer: &str) -> io::Result<bool> {
        let left = self.stock()?;
        if left == 0 {
            return Ok(false);
        }
        tokio::time::sleep(PAYMENT).await;
        self.set_stock(left - 1, buyer)?;
        self.order(left, buyer)?;
        Ok(true)
    }

    fn stock(&self) -> io::Result<u32> {
        let text = fs::read_to_string(&self.stock)?;
        text.parse().map_err(io::Error::other)
    }

    /// In one step, so that nobody reads half a number.
    fn set_stock(&self, items: u32, who: &str) -> io::Result<()> {
        let draft = self.stock.with_extension(who);
        fs::write(&draft, items.to_string())?;
        fs::rename(draft, &self.stock)
    }

    fn order(&self, item: u32, buyer: &str) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.orders)?;
        file.write_all(format!("{buyer}\t{item}\n").as_bytes())
    }

    /// The items that each buyer bought.
    fn orders(&self) -> Result<BTreeMap<String, Vec<u32>>> {
        let mut orders = BTreeMap::<_, Vec<_>>::new();
        for line in fs::read_to_string(&self.orders)?.lines() {
            let (buyer, item) = line.split_once('\t').ok_or("not an order")?;
            orders
                .entry(buyer.to_owned())
                .or_default()
                .push(item.parse()?);
        }
        Ok(orders)
    }
}
