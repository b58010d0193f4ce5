//! `distlock watch`: the locks of a store, as they change, at a terminal.

use std::{
    io::{self, IsTerminal},
    thread,
};

use distlock::LockInfo;
use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout},
    style::{Color, Modifier, Style},
    text::{Line, Text},
    widgets::{Block, Borders, Paragraph, Row, Table, TableState},
};
use tokio::sync::mpsc;

use crate::{
    args::Global,
    failure::{Failure, Kind},
    observe::{Observer, View},
    show::rounded,
    verbs::connect,
};

pub(crate) async fn watch(prefix: String, global: Global) -> Result<i32, Failure> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(Failure::new(
            Kind::Usage,
            "watch needs a terminal; `distlock list` prints the locks",
        ));
    }
    let client = connect(&global).await?;
    let store = client.capabilities().store;
    let mut observer = Observer::new(client, prefix);
    // A store that does not answer is told before the screen is taken.
    let screen = Screen {
        store,
        view: observer.look().await?,
        trouble: None,
        table: TableState::default().with_selected(0),
    };
    let mut terminal = ratatui::init();
    let ended = follow(&mut terminal, screen, observer).await;
    ratatui::restore();
    ended.map_err(|why| Failure::new(Kind::Internal, format!("cannot use the terminal: {why}")))?;
    Ok(0)
}

/// What is shown.
struct Screen {
    store: &'static str,
    view: View,
    /// Why the view is an old one.
    trouble: Option<String>,
    table: TableState,
}

async fn follow(
    terminal: &mut DefaultTerminal,
    mut screen: Screen,
    mut observer: Observer,
) -> io::Result<()> {
    let mut events = events();
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        tokio::select! {
            event = events.recv() => match event {
                Some(Event::Key(key)) if is_end(key) => return Ok(()),
                Some(Event::Key(key)) => screen.press(key),
                Some(_) => {}
                // The terminal is gone.
                None => return Ok(()),
            },
            looked = observer.look() => match looked {
                Ok(view) => {
                    screen.view = view;
                    screen.trouble = None;
                }
                Err(why) => screen.trouble = Some(why.to_string()),
            },
        }
    }
}

/// Reading a terminal blocks, so a thread does it; it ends with the process.
fn events() -> mpsc::UnboundedReceiver<Event> {
    let (sender, receiver) = mpsc::unbounded_channel();
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.send(event).is_err() {
                break;
            }
        }
    });
    receiver
}

fn is_end(key: KeyEvent) -> bool {
    let is_control_c =
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    is_control_c || [KeyCode::Char('q'), KeyCode::Esc].contains(&key.code)
}

impl Screen {
    fn press(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        match key.code {
            KeyCode::Down | KeyCode::Char('j') => self.table.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.table.select_previous(),
            KeyCode::PageDown => self.table.scroll_down_by(20),
            KeyCode::PageUp => self.table.scroll_up_by(20),
            KeyCode::Home => self.table.select_first(),
            KeyCode::End => self.table.select_last(),
            _ => {}
        }
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let details = self.details();
        let height = (details.height() as u16 + 2).min(frame.area().height / 2);
        let [head, locks, below, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(3),
            Constraint::Length(height),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.head(), head);
        let details = Paragraph::new(details).block(Block::new().borders(Borders::TOP));
        frame.render_widget(details, below);
        let table = table(&self.view.locks);
        frame.render_stateful_widget(table, locks, &mut self.table);
        frame.render_widget(Line::raw("↑ ↓ choose   q quit"), foot);
    }

    fn head(&self) -> Line<'_> {
        if let Some(trouble) = &self.trouble {
            let red = Style::new().fg(Color::Red);
            return Line::styled(format!("{}: {trouble}", self.store), red);
        }
        let View { locks, rates } = &self.view;
        let held = locks.iter().filter(|info| info.holder.is_some()).count();
        let waiters: usize = locks.iter().map(|info| info.waiters.len()).sum();
        let text = format!(
            "{}: {held} held, {waiters} waiting, {:.1} grants/s, {:.1} losses/s",
            self.store, rates.grants, rates.losses
        );
        Line::styled(text, Modifier::BOLD)
    }

    /// The chosen lock, and who waits for it in order.
    fn details(&self) -> Text<'_> {
        let chosen = self.table.selected().unwrap_or_default();
        let chosen = chosen.min(self.view.locks.len().saturating_sub(1));
        let Some(info) = self.view.locks.get(chosen) else {
            return Text::raw("no locks");
        };
        let mut lines = vec![match &info.holder {
            Some(holder) => Line::raw(format!(
                "{}: token {}, owner {}",
                info.key, holder.token, holder.owner
            )),
            None => Line::raw(format!("{}: on its way to the first waiter", info.key)),
        }];
        lines.extend((1..).zip(&info.waiters).map(|(place, waiter)| {
            let time = rounded(waiter.waiting_for);
            Line::raw(format!("{place:>4}. {}, for {time}", waiter.asker))
        }));
        Text::from(lines)
    }
}

fn table(locks: &[LockInfo]) -> Table<'_> {
    let rows = locks.iter().map(|info| {
        let waiters = info.waiters.len().to_string();
        let key = info.key.to_string();
        Row::new(match &info.holder {
            Some(holder) => [
                key,
                holder.asker.to_string(),
                rounded(holder.held_for),
                rounded(holder.remaining),
                holder.holds.to_string(),
                waiters,
            ],
            None => [key, "-".into(), "-".into(), "-".into(), "-".into(), waiters],
        })
    });
    let widths = [
        Constraint::Fill(3),
        Constraint::Fill(3),
        Constraint::Length(12),
        Constraint::Length(12),
        Constraint::Length(5),
        Constraint::Length(7),
    ];
    let head = [
        "LOCK",
        "HOLDER",
        "HELD FOR",
        "LEASE LEFT",
        "HOLDS",
        "WAITERS",
    ];
    Table::new(rows, widths)
        .header(Row::new(head).style(Modifier::UNDERLINED))
        .row_highlight_style(Modifier::REVERSED)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::observe::{Rates, tests::lock};

    fn drawn(screen: &mut Screen) -> String {
        let mut terminal = Terminal::new(TestBackend::new(100, 12)).expect("a terminal");
        terminal.draw(|frame| screen.draw(frame)).expect("drawn");
        terminal.backend().to_string()
    }

    #[test]
    fn locks_holders_and_waiters_are_shown() {
        let minute = Duration::from_secs(60);
        let mut screen = Screen {
            store: "memory",
            view: View {
                locks: vec![lock("orders/1", 7, minute), lock("orders/2", 8, minute)],
                rates: Rates {
                    grants: 1.5,
                    losses: 0.0,
                },
            },
            trouble: None,
            table: TableState::default().with_selected(0),
        };
        let shown = drawn(&mut screen);
        for part in [
            "memory: 2 held, 2 waiting, 1.5 grants/s, 0.0 losses/s",
            "LEASE LEFT",
            "orders/2",
            "holder (host, pid 7)",
            "3s",
            "1m",
            "orders/1: token 7",
            "1. waiter (host, pid 7), for 1s",
        ] {
            assert!(shown.contains(part), "{part} in\n{shown}");
        }
        screen.press(KeyEvent::from(KeyCode::Down));
        assert!(drawn(&mut screen).contains("orders/2: token 8"));
        for _ in 0..3 {
            screen.press(KeyEvent::from(KeyCode::Down));
        }
        assert!(drawn(&mut screen).contains("orders/2: token 8"));

        screen.trouble = Some("no answer".into());
        assert!(drawn(&mut screen).contains("memory: no answer"));
        screen.view = View::default();
        assert!(drawn(&mut screen).contains("no locks"));
    }

    #[test]
    fn a_screen_of_any_size_will_do() {
        let mut screen = Screen {
            store: "memory",
            view: View {
                locks: (1..50)
                    .map(|n| lock(&format!("l{n}"), n, Duration::ZERO))
                    .collect(),
                rates: Rates::default(),
            },
            trouble: None,
            table: TableState::default(),
        };
        for (width, height) in [(1, 1), (3, 2), (20, 5), (300, 100)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
            terminal.draw(|frame| screen.draw(frame)).expect("drawn");
        }
    }
}
