//! `distlock run`.

use std::{io, process::Command};

use distlock::{Error, LockClient, LockGuard, OwnerId, Wait};

use crate::{
    args::{Global, Run},
    failure::{Failure, Kind, not_executed, warn, with_causes},
    group::{Group, this_program},
    job::{Ended, Job, Policy},
    nested::Around,
    signals::Signals,
    terminal,
    verbs::connect,
    waiting,
};

/// Returns the exit code of the command.
pub(crate) async fn run(args: Run, global: Global) -> Result<i32, Failure> {
    let around = Around::from_env()?;
    let key = &args.claim.key;
    let owner = args.claim.owner.unwrap_or_else(|| around.owner_of(key));
    let policy = Policy::new(&args, global.json);

    let mut signals = Signals::forwarded().map_err(cannot_start)?;
    // Started before the lock is there, so that it costs no time under the lock.
    let group = Group::start().map_err(cannot_start)?;

    let client = tokio::select! {
        client = connect(&global) => client?,
        signal = signals.next_to_end() => return Ok(128 + signal),
    };
    let guard = tokio::select! {
        guard = acquire(&client, &args, owner) => guard.map(Ok),
        signal = signals.next_to_end() => Ok(Err(signal)),
        never = waiting::show(&client, key, global.json) => match never {},
    };
    let code = match guard {
        Ok(Ok(guard)) => run_under(guard, group, around, policy, &args, &mut signals).await,
        Ok(Err(signal)) => Ok(128 + signal),
        Err(why) => Err(why.into()),
    };
    // What was asked for and not used is taken back before this process ends.
    client.shutdown().await;
    code
}

async fn acquire(client: &LockClient, args: &Run, owner: OwnerId) -> distlock::Result<LockGuard> {
    let claim = &args.claim;
    let wait = match args.wait {
        Some(limit) => limit.into(),
        None if args.no_wait => Wait::No,
        None => Wait::Forever,
    };
    let mut acquire = client
        .lock(&claim.key)
        .owner(owner)
        .ttl(claim.ttl)
        .wait(wait);
    if let Some(limit) = args.max_hold {
        acquire = acquire.max_hold(limit);
    }
    if let Some(time) = args.min_hold {
        acquire = acquire.min_hold(time);
    }
    if let Some(label) = &claim.label {
        acquire = acquire.label(label);
    }
    acquire.acquire().await
}

async fn run_under(
    guard: LockGuard,
    mut group: Group,
    around: Around,
    policy: Policy,
    args: &Run,
    signals: &mut Signals,
) -> Result<i32, Failure> {
    group.ready().map_err(cannot_start)?;
    let environment = around.environment(guard.key(), guard.token(), guard.owner());
    let takes_terminal = terminal::is_to_be_given();
    let mut command = if takes_terminal {
        let mut taker = Command::new(this_program().map_err(cannot_start)?);
        taker.arg(terminal::TAKE).args(&args.command);
        taker
    } else {
        let mut command = Command::new(&args.command[0]);
        command.args(&args.command[1..]);
        command
    };
    let job = Job::start(
        &guard,
        group,
        command.envs(environment),
        takes_terminal,
        policy,
    );
    let ended = match job {
        Ok(job) => job.run(signals).await,
        Err(why) => Ended {
            code: not_executed(&args.command[0], &why, policy.json),
            lost: None,
            is_warned: false,
            is_over: true,
        },
    };
    release(guard, ended, policy).await
}

/// Gives the lock back, unless something of the command may still run.
async fn release(guard: LockGuard, ended: Ended, policy: Policy) -> Result<i32, Failure> {
    let key = guard.key().clone();
    let released = if ended.is_over {
        guard.release().await
    } else {
        guard.detach().map(drop)
    };
    if let Some(lost) = ended.lost {
        return Err(Failure::new(Kind::Lost, lost).about(&key, None));
    }
    match released {
        Ok(()) if ended.is_over => {}
        Ok(()) => warn(
            policy.json,
            format!("a process cannot be killed; lock {key} ends with its lease"),
        ),
        Err(why @ Error::Lost { .. }) if policy.kills() => return Err(why.into()),
        Err(Error::Lost { .. }) if ended.is_warned => {}
        Err(why) => warn(policy.json, with_causes(&why)),
    }
    Ok(ended.code)
}

fn cannot_start(why: io::Error) -> Failure {
    Failure::new(
        Kind::Internal,
        format!("cannot start a process group: {why}"),
    )
}
