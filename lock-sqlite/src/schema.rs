//! The tables: made in an empty file, recognised in ours, and never made in anybody else's.

use std::time::{Duration, Instant};

use lock_core::StoreError;
use sqlx::{ConnectOptions, Row, SqliteConnection};

use crate::connection::File;

/// "dlck": marks a file as ours, <https://www.sqlite.org/fileformat.html#application_id>.
const APPLICATION_ID: i64 = 0x646c_636b;
const VERSION: i64 = 1;

const CREATE: &str = concat!(
    "BEGIN IMMEDIATE;",
    include_str!("schema.sql"),
    "PRAGMA application_id = 1684824939; PRAGMA user_version = 1; COMMIT;"
);

/// A connection to the file, whose tables are there.
pub(crate) async fn open(file: &File) -> Result<SqliteConnection, StoreError> {
    let until = Instant::now() + file.busy_timeout;
    loop {
        match try_open(file).await {
            // Several processes that start at once: the change to a write-ahead log does not
            // wait for a lock by itself.
            Err(why) if why.is_transient() && Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            opened => return opened,
        }
    }
}

async fn try_open(file: &File) -> Result<SqliteConnection, StoreError> {
    let explain = |why| file.error(why);
    let options = file.options().create_if_missing(true);
    let mut connection = options.connect().await.map_err(explain)?;
    let state = state(&mut connection).await.map_err(explain)?;
    let refuse = |what: String| {
        let path = file.path.display();
        Err(StoreError::permanent(format!("lock file {path}: {what}")))
    };
    match state {
        FileState::Ours { version: VERSION } => {}
        FileState::Empty => {
            use_wal(&mut connection, file).await?;
            // On an error the connection is dropped, and with it whatever it has begun.
            sqlx::raw_sql(CREATE)
                .execute(&mut connection)
                .await
                .map_err(explain)?;
        }
        FileState::Ours { version } => {
            return refuse(format!(
                "its tables have version {version}, this program knows version {VERSION}; it was \
                 left untouched"
            ));
        }
        FileState::Foreign => {
            return refuse("it is a database of another program; it was left untouched".to_owned());
        }
    }
    use_wal(&mut connection, file).await?;
    Ok(connection)
}

enum FileState {
    Empty,
    Ours { version: i64 },
    Foreign,
}

async fn state(connection: &mut SqliteConnection) -> Result<FileState, sqlx::Error> {
    let row = sqlx::query(
        "SELECT (SELECT application_id FROM pragma_application_id),
                (SELECT user_version FROM pragma_user_version),
                (SELECT count(*) FROM sqlite_schema)",
    )
    .fetch_one(connection)
    .await?;
    let (id, version, tables): (i64, i64, i64) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    Ok(match (id, version, tables) {
        (APPLICATION_ID, version, 1..) => FileState::Ours { version },
        (0, 0, 0) => FileState::Empty,
        _ => FileState::Foreign,
    })
}

/// The mode stays in the file; one that has it already is not written.
async fn use_wal(connection: &mut SqliteConnection, file: &File) -> Result<(), StoreError> {
    let row = sqlx::query("PRAGMA journal_mode = WAL")
        .fetch_one(connection)
        .await
        .map_err(|why| file.error(why))?;
    let mode: String = row.try_get(0).map_err(|why| file.error(why))?;
    if mode == "wal" {
        return Ok(());
    }
    Err(StoreError::permanent(format!(
        "lock file {}: its file system cannot share memory between processes, which locks need; \
         use a local disk",
        file.path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statement_marks_the_file_as_ours() {
        assert!(CREATE.contains(&format!("application_id = {APPLICATION_ID};")));
        assert!(CREATE.contains(&format!("user_version = {VERSION};")));
    }
}
