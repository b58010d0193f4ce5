//! The protocol as a model, every state of which is looked at: claims, renewals, releases,
//! messages that are late, lost or in another order, clients that stand still, a fail-over that
//! forgets, and a resource that checks tokens. Six mistakes each give a counterexample.
//!
//! Time is a few ticks. Nobody has to do anything at any time: a client that stands still is one
//! that takes no step while time goes on, and a message that is late is one that is not delivered.

use std::collections::BTreeSet;

use stateright::{Checker, Model, Property};

const CLIENTS: usize = 2;
const TTL: u8 = 2;
const END: u8 = 3;
/// Tokens follow the clock: each tick is worth more than there are grants in it.
const TOKENS_PER_TICK: u8 = 10;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Mistake {
    #[default]
    None,
    /// The client counts its deadline from the reply.
    DeadlineFromReply,
    /// A release does not ask whose the lock is.
    ReleaseWithoutOwner,
    /// A renewal of a lock that is free takes it again.
    RenewalRecreates,
    /// A client that was woken up takes the lock for its own.
    WakeUpIsGrant,
    /// Tokens come from a counter that a fail-over sets back.
    TokenFromCounter,
    /// The resource takes every token.
    ResourceTakesAll,
}

#[derive(Clone, Debug, Default)]
struct Protocol {
    mistake: Mistake,
    /// Whether the server may be replaced by one that has forgotten the last moments.
    fail_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Acquire {
        client: usize,
        hold: u8,
        sent: u8,
    },
    Granted {
        client: usize,
        hold: u8,
        sent: u8,
        token: u8,
    },
    Renew {
        client: usize,
        hold: u8,
        sent: u8,
    },
    Renewed {
        client: usize,
        hold: u8,
        sent: u8,
    },
    Release {
        client: usize,
        hold: u8,
    },
    /// Sent only where it is taken for more than it is: else it would be nothing but a reason to
    /// ask again, which everybody may at any time.
    Wake {
        client: usize,
    },
    Write {
        client: usize,
        token: u8,
    },
}

impl Message {
    fn is_about(&self, id: usize) -> bool {
        match *self {
            Self::Acquire { client, .. } | Self::Granted { client, .. } => client == id,
            _ => false,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// The hold it is about, counted from 1.
    hold: u8,
    phase: Phase,
    renewals: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    Asked,
    Held {
        token: u8,
        deadline: u8,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Server {
    lease: Option<Lease>,
    last_token: u8,
    waiter: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    client: usize,
    hold: u8,
    token: u8,
    expires: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    clients: [Client; CLIENTS],
    server: Server,
    failed_over: bool,
    network: BTreeSet<Message>,
    /// The last write that the resource accepted: token and client.
    written: Option<(u8, usize)>,
    refused: bool,
    /// What went wrong at the resource.
    write_went_back: bool,
    /// The last token of each client; 0 before it has any.
    tokens: [u8; CLIENTS],
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Tick,
    Ask(usize),
    AskAgain(usize),
    GiveUp(usize),
    Renew(usize),
    Write(usize),
    Release(usize),
    Deliver(Message),
    Lose(Message),
    FailOver,
}

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.now < END {
            steps.push(Step::Tick);
        }
        for (id, client) in state.clients.iter().enumerate() {
            match client.phase {
                Phase::Idle if client.hold < self.holds(id) => steps.push(Step::Ask(id)),
                Phase::Idle => {}
                Phase::Asked => {
                    steps.push(Step::GiveUp(id));
                    // An attempt is repeated when nothing has come of it.
                    if !state.network.iter().any(|message| message.is_about(id)) {
                        steps.push(Step::AskAgain(id));
                    }
                }
                Phase::Held { deadline, .. } => {
                    steps.push(Step::Release(id));
                    if state.now < deadline {
                        steps.push(Step::Write(id));
                        if client.renewals == 0 {
                            steps.push(Step::Renew(id));
                        }
                    }
                }
            }
        }
        for message in &state.network {
            steps.extend([Step::Deliver(*message), Step::Lose(*message)]);
        }
        if self.fail_over && !state.failed_over {
            steps.push(Step::FailOver);
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        let now = state.now;
        match step {
            Step::Tick => state.now += 1,
            Step::Ask(id) => {
                state.clients[id].hold += 1;
                state.clients[id].phase = Phase::Asked;
                state.clients[id].renewals = 0;
                state.ask(id);
            }
            Step::AskAgain(id) => state.ask(id),
            // Whatever has become of the request: it is taken back.
            Step::GiveUp(id) | Step::Release(id) => {
                let hold = state.clients[id].hold;
                state.clients[id].phase = Phase::Idle;
                state.network.insert(Message::Release { client: id, hold });
            }
            Step::Renew(id) => {
                state.clients[id].renewals += 1;
                let hold = state.clients[id].hold;
                let sent = now;
                state.network.insert(Message::Renew {
                    client: id,
                    hold,
                    sent,
                });
            }
            // It looks first, and what it sends may arrive at any time.
            Step::Write(id) => {
                if let Phase::Held { token, .. } = state.clients[id].phase {
                    state.network.insert(Message::Write { client: id, token });
                }
            }
            Step::Lose(message) => {
                state.network.remove(&message);
            }
            Step::Deliver(message) => {
                state.network.remove(&message);
                self.deliver(&mut state, message);
            }
            Step::FailOver => {
                state.server = Server::default();
                state.failed_over = true;
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |model: &Self, state: &State| {
                model.fail_over || state.holders().count() <= 1
            }),
            Property::always(TOKENS_DIFFER, |_, state: &State| {
                state.tokens[0] != state.tokens[1] || state.tokens == [0; CLIENTS]
            }),
            Property::always(LARGEST_TOKEN, |_, state: &State| {
                let lease = state.server.lease;
                lease.is_none_or(|lease| lease.token == state.server.last_token)
            }),
            Property::always(WRITES_IN_ORDER, |_, state: &State| !state.write_went_back),
            // It has shown nothing if these do not happen.
            Property::sometimes(BOTH_HELD, |_, state: &State| !state.tokens.contains(&0)),
            Property::sometimes(STALE_REFUSED, |model: &Self, state: &State| {
                state.refused || model.mistake == Mistake::ResourceTakesAll
            }),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.network.len() <= 2
    }
}

const ONE_HOLDER: &str = "at most one client holds the lock for certain";
const TOKENS_DIFFER: &str = "no token is granted to two";
const LARGEST_TOKEN: &str = "who holds the lock has the largest token";
const WRITES_IN_ORDER: &str = "writes are in the order of their tokens";
const BOTH_HELD: &str = "both clients get the lock";
const STALE_REFUSED: &str = "a late write is refused";

impl State {
    fn ask(&mut self, client: usize) {
        let hold = self.clients[client].hold;
        let sent = self.now;
        self.network.insert(Message::Acquire { client, hold, sent });
    }

    /// Those who hold the lock by what they know.
    fn holders(&self) -> impl Iterator<Item = &Client> {
        self.clients.iter().filter(|client| match client.phase {
            Phase::Held { deadline, .. } => self.now < deadline,
            _ => false,
        })
    }

    /// The lease, unless it has ended.
    fn lease(&mut self) -> &mut Option<Lease> {
        let lease = &mut self.server.lease;
        if lease.is_some_and(|lease| lease.expires <= self.now) {
            *lease = None;
        }
        lease
    }
}

impl Protocol {
    /// How many holds a client asks for at most.
    fn holds(&self, client: usize) -> u8 {
        if client == 0 || self.fail_over { 1 } else { 2 }
    }

    fn deliver(&self, state: &mut State, message: Message) {
        let now = state.now;
        match message {
            Message::Acquire { client, hold, sent } => {
                let granted = match *state.lease() {
                    None => Some(self.grant(state, client, hold)),
                    Some(lease) if lease.client == client && lease.hold == hold => Some(lease),
                    Some(_) => None,
                };
                if let Some(mut lease) = granted {
                    lease.expires = lease.expires.max(now + TTL);
                    state.server.lease = Some(lease);
                    let token = lease.token;
                    state.tokens[client] = token;
                    state.network.insert(Message::Granted {
                        client,
                        hold,
                        sent,
                        token,
                    });
                } else if self.mistake == Mistake::WakeUpIsGrant {
                    state.server.waiter = Some(client);
                }
            }
            Message::Renew { client, hold, sent } => {
                let found = match *state.lease() {
                    Some(lease) if lease.client == client && lease.hold == hold => Some(lease),
                    None if self.mistake == Mistake::RenewalRecreates => {
                        // With the token that the client has.
                        Some(Lease {
                            client,
                            hold,
                            token: state.tokens[client],
                            expires: now,
                        })
                    }
                    _ => None,
                };
                if let Some(mut lease) = found {
                    lease.expires = lease.expires.max(now + TTL);
                    state.server.lease = Some(lease);
                    state
                        .network
                        .insert(Message::Renewed { client, hold, sent });
                }
            }
            Message::Release { client, hold } => {
                let owns = |lease: Lease| lease.client == client && lease.hold == hold;
                let any = self.mistake == Mistake::ReleaseWithoutOwner;
                if state.lease().is_some_and(|lease| any || owns(lease)) {
                    state.server.lease = None;
                    if let Some(client) = state.server.waiter.take() {
                        state.network.insert(Message::Wake { client });
                    }
                }
            }
            Message::Granted {
                client,
                hold,
                sent,
                token,
            } => {
                let asked = &mut state.clients[client];
                let deadline = self.deadline(sent, now);
                if asked.hold == hold && asked.phase == Phase::Asked && now < deadline {
                    asked.phase = Phase::Held { token, deadline };
                }
            }
            Message::Renewed { client, hold, sent } => {
                let later = self.deadline(sent, now);
                let holder = &mut state.clients[client];
                if let Phase::Held { deadline, .. } = &mut holder.phase
                    && holder.hold == hold
                    // What was lost stays lost.
                    && now < *deadline
                {
                    *deadline = later.max(*deadline);
                }
            }
            Message::Wake { client } => {
                if state.clients[client].phase == Phase::Asked {
                    state.clients[client].phase = Phase::Held {
                        token: state.server.last_token + 1,
                        deadline: now + TTL,
                    };
                }
            }
            Message::Write { client, token } => match state.written {
                Some((last, owner)) if token < last || token == last && owner != client => {
                    if self.mistake == Mistake::ResourceTakesAll {
                        state.written = Some((token, client));
                        state.write_went_back = true;
                    } else {
                        state.refused = true;
                    }
                }
                _ => state.written = Some((token, client)),
            },
        }
    }

    fn grant(&self, state: &mut State, client: usize, hold: u8) -> Lease {
        let next = state.server.last_token + 1;
        let token = if self.fail_over && self.mistake != Mistake::TokenFromCounter {
            // They follow the clock, and a fail-over takes longer than the clocks of two servers
            // are apart.
            next.max((state.now + u8::from(state.failed_over)) * TOKENS_PER_TICK)
        } else {
            next
        };
        state.server.last_token = token;
        Lease {
            client,
            hold,
            token,
            expires: 0,
        }
    }

    fn deadline(&self, sent: u8, now: u8) -> u8 {
        match self.mistake {
            Mistake::DeadlineFromReply => now + TTL,
            _ => sent + TTL,
        }
    }
}

fn check(mistake: Mistake, fail_over: bool) -> impl Checker<Protocol> {
    let model = Protocol { mistake, fail_over };
    model.checker().threads(2).spawn_bfs().join()
}

/// A1, A2, A3, A4, A5, A6, A8, A11, A12: exclusion, tokens and writes hold in every state.
#[test]
fn the_protocol_holds() {
    let checker = check(Mistake::None, false);
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 10_000);
}

/// A13, A14, C1: after a fail-over that forgets, two may hold the lock, and their tokens tell
/// them apart.
#[test]
fn after_a_fail_over_tokens_hold() {
    let checker = check(Mistake::None, true);
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// A mistake, the property that it breaks, and whether that takes a fail-over.
const MISTAKES: [(Mistake, &str, bool); 6] = [
    (Mistake::DeadlineFromReply, ONE_HOLDER, false),
    (Mistake::ReleaseWithoutOwner, ONE_HOLDER, false),
    (Mistake::RenewalRecreates, LARGEST_TOKEN, false),
    (Mistake::WakeUpIsGrant, ONE_HOLDER, false),
    (Mistake::TokenFromCounter, TOKENS_DIFFER, true),
    (Mistake::ResourceTakesAll, WRITES_IN_ORDER, false),
];

#[test]
fn every_mistake_has_a_counterexample() {
    for (mistake, property, fail_over) in MISTAKES {
        let model = Protocol { mistake, fail_over };
        let checker = model
            .checker()
            .threads(2)
            .finish_when(stateright::HasDiscoveries::AnyOf(BTreeSet::from([
                property,
            ])))
            .spawn_bfs()
            .join();
        let path = checker.assert_any_discovery(property);
        println!(
            "{mistake:?}, in {} steps:",
            path.clone().into_actions().len()
        );
        for step in path.into_actions() {
            println!("  {step:?}");
        }
    }
}
