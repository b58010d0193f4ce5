//! What the page looks like. It can be read without scripts.

use distlock::LockInfo;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::Seen;
use crate::show::rounded;

/// So many locks are shown at most.
const MOST: usize = 1000;

const STYLE: &str = "
    :root { color-scheme: light dark; --line: #8884; --soft: light-dark(#666, #aaa); }
    body { font: 1rem/1.5 system-ui, sans-serif; max-width: 75rem; margin: 1.5rem auto; padding: 0 1rem; }
    h1 { font-size: 1.3rem; } h1 small { font-weight: normal; color: var(--soft); }
    dl { display: flex; gap: 2.5rem; flex-wrap: wrap; margin: 1rem 0; }
    dt { color: var(--soft); font-size: .85rem; } dd { margin: 0; font-size: 1.6rem; font-variant-numeric: tabular-nums; }
    table { width: 100%; border-collapse: collapse; }
    th { text-align: left; font-size: .85rem; color: var(--soft); font-weight: normal; }
    th, td { padding: .35rem .6rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
    .n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
    .key { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
    ol { margin: 0; padding-left: 1.4rem; } .trouble { background: #c223; padding: .5rem .8rem; border-left: .3rem solid #c22; }
    form { margin: 1rem 0; } footer { margin: 2rem 0; color: var(--soft); font-size: .85rem; }
";

pub(super) fn front(seen: &Seen, store: &str, may_release: bool) -> Markup {
    page(html! {
        h1 { "Locks " small { "in " (store) } }
        @if may_release {
            // Outside of what changes, so that what was typed stays.
            form id="release" method="post" action="/release" {
                label { "Secret, to release a lock: " input type="password" name="secret" required; }
            }
        }
        main { (changing(seen, may_release)) }
        footer { a href="/metrics" { "Metrics" } " · " a href="/healthz" { "Health" } }
        script src="/live.js" {}
    })
}

/// The part that is sent again and again.
pub(super) fn changing(seen: &Seen, may_release: bool) -> Markup {
    let locks = &seen.view.locks;
    let held = locks.iter().filter(|info| info.holder.is_some()).count();
    let waiting: usize = locks.iter().map(|info| info.waiters.len()).sum();
    html! {
        @if let Some(trouble) = &seen.trouble {
            p.trouble { "As of " (rounded(seen.at.elapsed())) " ago: " (trouble) }
        }
        dl {
            div { dt { "held" } dd { (held) } }
            div { dt { "waiting" } dd { (waiting) } }
            div { dt { "grants a second" } dd { (format!("{:.1}", seen.view.rates.grants)) } }
            div { dt { "losses a second" } dd { (format!("{:.1}", seen.view.rates.losses)) } }
        }
        @if locks.is_empty() { p { "No locks." } } @else {
            table {
                thead {
                    tr {
                        th { "Lock" } th { "Holder" } th.n { "Held for" } th.n { "Lease left" }
                        th.n { "Holds" } th.n { "Token" } th { "Waiters, in order" }
                        @if may_release { th {} }
                    }
                }
                tbody { @for info in locks.iter().take(MOST) { (row(info, may_release)) } }
            }
        }
        @if locks.len() > MOST { p { "And " (locks.len() - MOST) " more." } }
    }
}

fn row(info: &LockInfo, may_release: bool) -> Markup {
    html! {
        tr {
            td.key { (info.key) }
            @match &info.holder {
                Some(holder) => {
                    td { (holder.asker) }
                    td.n { (rounded(holder.held_for)) }
                    td.n { (rounded(holder.remaining)) }
                    td.n { (holder.holds) }
                    td.n { (holder.token) }
                }
                None => { td colspan="5" { "on its way to the first waiter" } }
            }
            td {
                @if !info.waiters.is_empty() {
                    ol { @for waiter in &info.waiters {
                        li { (waiter.asker) ", for " (rounded(waiter.waiting_for)) }
                    } }
                }
            }
            @if may_release {
                td {
                    @if let Some(holder) = &info.holder {
                        button form="release" name="grant" value={ (holder.token) " " (info.key) } { "Release" }
                    }
                }
            }
        }
    }
}

pub(super) fn message(text: &str) -> Markup {
    page(html! {
        h1 { (text) }
        p { a href="/" { "Back to the locks" } }
    })
}

fn page(body: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Locks" }
                noscript { meta http-equiv="refresh" content="2"; }
                style { (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    }
}
