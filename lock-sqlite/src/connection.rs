//! One connection to the file, for one request after the other.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use lock_core::StoreError;
use sqlx::{
    ConnectOptions, Connection as _, Sqlite, SqliteConnection,
    query::Query,
    sqlite::{SqliteArguments, SqliteConnectOptions, SqliteRow, SqliteSynchronous},
};
use tokio::{sync::Mutex, time::timeout};

use crate::{
    config::Settings,
    error::{explain, too_busy},
};

/// The file, as every connection opens it.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) path: Arc<Path>,
    pub(crate) busy_timeout: Duration,
}

impl File {
    pub(crate) fn new(path: PathBuf, settings: &Settings) -> Self {
        Self {
            path: path.into(),
            busy_timeout: settings.busy_timeout,
        }
    }

    pub(crate) fn options(&self) -> SqliteConnectOptions {
        SqliteConnectOptions::new()
            .filename(&self.path)
            .busy_timeout(self.busy_timeout)
            // Without a sync for each commit: a loss of power ends every holder as well, and
            // tokens stay ahead because they follow the clock.
            .synchronous(SqliteSynchronous::Normal)
            // What a dropped future leaves to do waits here; its sender must not block.
            .command_buffer_size(1024)
            .thread_name(|_| "distlock-sqlite".to_owned())
            .disable_statement_logging()
    }

    /// Bounds a call. SQLite's own limit comes first, except behind others that wait for the file.
    pub(crate) async fn within_limit<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = self.busy_timeout + Duration::from_millis(500);
        match timeout(limit, call).await {
            Ok(answer) => answer,
            Err(_) => Err(too_busy(&self.path, limit)),
        }
    }

    pub(crate) fn error(&self, error: sqlx::Error) -> StoreError {
        explain(&self.path, self.busy_timeout, error)
    }
}

/// A connection that is opened when it is first used, and again after it broke.
///
/// sqlx runs every connection on a thread of its own: a future that is dropped leaves a statement
/// that is done all the same, before anything that is sent later.
#[derive(Debug)]
pub(crate) struct Connection {
    file: File,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Unopened,
    Open(SqliteConnection),
    Closed,
}

impl Connection {
    pub(crate) fn unopened(file: File) -> Self {
        Self {
            file,
            state: Mutex::new(State::Unopened),
        }
    }

    pub(crate) fn open(file: File, connection: SqliteConnection) -> Self {
        Self {
            file,
            state: Mutex::new(State::Open(connection)),
        }
    }

    /// All rows of one statement.
    ///
    /// Only at its end has the statement committed: a caller that took the first row and left
    /// would not hear of a full disk.
    pub(crate) async fn rows(
        &self,
        query: Query<'static, Sqlite, SqliteArguments>,
    ) -> Result<Vec<SqliteRow>, StoreError> {
        self.file.within_limit(self.rows_in_turn(query)).await
    }

    pub(crate) async fn row(
        &self,
        query: Query<'static, Sqlite, SqliteArguments>,
    ) -> Result<Option<SqliteRow>, StoreError> {
        Ok(self.rows(query).await?.into_iter().next())
    }

    async fn rows_in_turn(
        &self,
        query: Query<'static, Sqlite, SqliteArguments>,
    ) -> Result<Vec<SqliteRow>, StoreError> {
        let mut state = self.state.lock().await;
        if let State::Unopened = *state {
            let opened = self.file.options().connect().await;
            *state = State::Open(opened.map_err(|why| self.file.error(why))?);
        }
        let State::Open(connection) = &mut *state else {
            return Err(StoreError::closed());
        };
        let rows = query.fetch_all(connection).await;
        if let Err(sqlx::Error::WorkerCrashed) = rows {
            *state = State::Unopened;
        }
        rows.map_err(|why| self.file.error(why))
    }

    /// Ends it, after what is under way; its thread may take until then.
    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        let state = std::mem::replace(&mut *self.state.lock().await, State::Closed);
        let State::Open(connection) = state else {
            return Ok(());
        };
        let closed = async { connection.close().await.map_err(|why| self.file.error(why)) };
        self.file.within_limit(closed).await
    }
}
