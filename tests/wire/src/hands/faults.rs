//! What holds while the provider fails.

use tailstep_runtime::ports::HandsError;

use super::{
    Again, Ending, Fault, Subject,
    laws::{NEW, lines},
    session::Session,
};

pub(super) async fn every_fault_has_its_ending(s: Subject) {
    let mut broken = Vec::new();
    for (index, fault) in s.faults.iter().enumerate() {
        if let Err(why) = holds(&s, fault, index).await {
            broken.push(format!("{}: {why}", fault.name));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n  "));
}

async fn holds(s: &Subject, fault: &Fault, index: usize) -> Result<(), String> {
    let (mut one, mut other) = (Session::new(), Session::new());
    other.text(s, "echo of-another > file").await;
    // Some faults can only meet the making of a sandbox, others only one that is there.
    if !fault.name.starts_with("create") && !fault.name.starts_with("token reply") {
        one.text(s, "echo saved > file").await;
    }
    let count = format!("count-{index}");
    let inside = s.outside.inside.join(&count);
    let mut order =
        one.bash_order(&format!("echo ran >> {}; cat file; echo end", inside.display()));
    order.timeout_ms = 4_000;
    let before = s.provider.requests();
    s.provider.inject(fault.name);
    let ended = s.hands.execute(&order).await;
    let cost = s.provider.requests() - before;
    check(s.provider.pending() == 0, || "no request met it".to_owned())?;
    let found = match &ended {
        Ok(reply) if reply.text.contains("of-another") => {
            return Err(format!("another session's file: {}", reply.text));
        }
        Ok(reply) if reply.text.contains("did not run") => Ending::Refused,
        Ok(reply) if !reply.text.ends_with("end\n") => {
            return Err(format!("half a reply: {}", reply.text));
        }
        Ok(reply) if reply.text.contains(NEW) => Ending::AnsweredAnew,
        Ok(_) => Ending::Answered,
        Err(HandsError::Unavailable { .. } | HandsError::Unprepared { .. }) => Ending::Unavailable,
        Err(HandsError::Lost { .. }) => Ending::Lost,
    };
    check(found == fault.ending, || format!("{:?} was expected: {ended:?}", fault.ending))?;
    check(cost <= fault.requests_max, || {
        format!("cost {cost} requests, more than {}", fault.requests_max)
    })?;
    let here = s.outside.here.join(&count);
    let ran = lines(&here);
    let again = s.hands.execute(&order).await.map_err(|error| format!("again: {error}"))?;
    check(!again.text.contains("of-another"), || format!("again: {}", again.text))?;
    match fault.again {
        Again::Remembered => check(ran == 1 && lines(&here) == 1, || {
            format!("ran {ran} times, and {} times in all", lines(&here))
        })?,
        Again::Runs => check(lines(&here) == ran + 1, || {
            format!("delivered again it did not run: {}", again.text)
        })?,
    }
    check(again.text.ends_with("end\n"), || format!("again: {}", again.text))?;
    for key in [&one.key, &other.key] {
        s.hands.release(key).await.map_err(|error| error.to_string())?;
    }
    let live = s.provider.live().await;
    check(live == 0, || format!("{live} sandboxes are left over"))
}

fn check(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}
