//! How the file is, and what that weakens.

use lock_core::{Finding, StoreError};
use sqlx::{Row, query};

use crate::{
    connection::{Connection, File},
    disk,
};

/// Everything there is to say to an operator.
///
/// # Errors
///
/// When the file cannot be read.
pub(crate) async fn findings(file: &File, reader: &Connection) -> Result<Vec<Finding>, StoreError> {
    let path = file.path.display();
    let version: String = value(reader, "SELECT sqlite_version()").await?;
    let mut findings = vec![Finding::ok(
        "version",
        format!("SQLite {version} is built in"),
    )];
    findings.push(match disk::network(&file.path) {
        Some(name) => Finding::warning(
            "disk",
            format!("the file {path} is on a network file system ({name})"),
            "locks hold between the processes of one machine at best; put it on a local disk",
        ),
        None => Finding::ok("disk", format!("the file is {path}")),
    });
    let sound: String = value(reader, "PRAGMA quick_check(1)").await?;
    findings.push(match sound.as_str() {
        "ok" => Finding::ok("integrity", "the file is sound"),
        damage => Finding::failure(
            "integrity",
            format!("the file is damaged ({damage})"),
            "nothing is guaranteed; stop all programs that use it, and delete it",
        ),
    });
    findings.push(Finding::note(
        "persistence",
        "locks survive the end of every process",
        "a loss of power may cost the last changes, but ends their holders as well",
    ));
    let writable = std::fs::OpenOptions::new().write(true).open(&*file.path);
    findings.push(match writable {
        Ok(_) => Finding::ok("rights", "this user may write the file"),
        Err(why) => Finding::failure(
            "rights",
            format!("this user may not write the file ({why})"),
            "locks can be looked at, but not taken",
        ),
    });
    Ok(findings)
}

async fn value(reader: &Connection, sql: &'static str) -> Result<String, StoreError> {
    let row = reader.row(query(sql)).await?;
    let row = row.ok_or_else(|| StoreError::permanent("SQLite gave no row"))?;
    row.try_get(0)
        .map_err(|why| StoreError::permanent("SQLite gave a strange row").with_source(why))
}
