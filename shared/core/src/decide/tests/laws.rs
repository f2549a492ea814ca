//! Laws over generated logs.

use proptest::prelude::*;

use super::*;

const WORDS: [&str; 29] = [
    "say a",
    "say b",
    "interrupt",
    "ask",
    "ask 2",
    "ask 3",
    "answer hello",
    "answer bash",
    "answer bash read",
    "answer nope",
    "answer !cut bash",
    "answer .pause",
    "answer .refusal",
    "answer",
    "fail 9",
    "fail",
    "run",
    "run 2",
    "ran ok",
    "ran",
    "refused no",
    "cancelled",
    "unknown",
    "complete",
    "archive",
    "stale 3",
    "result 1 one",
    "result 2 two",
    "require",
];

/// A log of whatever is accepted of random words, so that odd but legal logs come up too.
fn script() -> impl Strategy<Value = Script> {
    let choices = prop::collection::vec(0..WORDS.len() + 6, 0..60);
    (any::<bool>(), choices).prop_map(|(outside, choices)| {
        let mut script = match outside {
            true => Script::play_outside("say start"),
            false => Script::play("say start"),
        };
        for choice in choices {
            match WORDS.get(choice) {
                Some(word) => drop(script.try_push(word)),
                // Often do what the session needs, or most logs would stop early.
                None => follow(&mut script),
            }
        }
        script
    })
}

fn follow(script: &mut Script) {
    let events = match decide(&script.session, u64::MAX, &Limits::default()) {
        Action::Record(events) => events,
        Action::Start { intent, .. } => vec![intent],
        Action::Watch(Open { effect: Effect::Model, .. }) => {
            vec![script.event("answer bash read")]
        }
        Action::Watch(_) => vec![script.event("ran ok")],
        Action::Rest | Action::Wait { .. } => match script.session.awaits().last() {
            // The last first, so that answers come in another order than the calls.
            Some(call) => vec![script.event(&format!("result {} ok", call.part))],
            None => vec![script.event("say more")],
        },
    };
    let seq = script.session.seq + 1;
    let record = Record::new(seq, seq * 1_000, events);
    // An ended session takes nothing more.
    if script.session.apply(&record).is_ok() {
        script.records.push(record);
    }
}

proptest! {
    #[test]
    fn folding_a_prefix_and_the_rest_is_folding_all(script in script(), cut in 0..40_usize) {
        let cut = cut.min(script.records.len());
        let prefix = Session::fold(&script.records[..cut]).unwrap();
        let snapshot = serde_json::to_vec(&prefix).unwrap();
        let mut rest: Session = serde_json::from_slice(&snapshot).unwrap();
        for record in &script.records[cut..] {
            rest.apply(record).unwrap();
        }
        prop_assert_eq!(&rest, &script.session);
    }

    #[test]
    fn records_survive_storage(script in script()) {
        for record in &script.records {
            let bytes = record.encode().unwrap();
            let again = Record::decode(&bytes).unwrap();
            prop_assert_eq!(&again.encode().unwrap(), &bytes);
            prop_assert_eq!(&again, record);
        }
    }

    #[test]
    fn what_is_decided_is_accepted(script in script()) {
        let mut session = script.session.clone();
        for _ in 0..200 {
            let events = match decide(&session, u64::MAX, &Limits::default()) {
                Action::Record(events) => events,
                Action::Start { intent, .. } => vec![intent],
                Action::Rest | Action::Wait { .. } | Action::Watch(_) => return Ok(()),
            };
            let record = Record::new(session.seq + 1, session.at_ms, events);
            let applied = session.apply(&record);
            prop_assert!(applied.is_ok(), "{:?}", applied);
        }
        prop_assert!(false, "bookkeeping never ends");
    }

    #[test]
    fn every_request_is_valid(script in script()) {
        let mut context = Context::default();
        for record in &script.records {
            context.push(record);
            let asks = record.events.iter().any(|event| matches!(event, Event::ModelStarted(_)));
            if asks {
                let request = context.request(&Limits::default()).unwrap();
                validate(&request.messages)?;
            }
        }
    }

    /// A doubled or late answer of a worker is refused and changes nothing.
    #[test]
    fn a_call_takes_one_answer(script in script()) {
        let mut session = script.session.clone();
        while let Some(call) = session.awaits().first().copied() {
            let input = Input::ToolResult { call, content: vec![], is_error: false };
            let event = received(input);
            let (_, next) = conclude(&session, vec![event.clone()], session.at_ms, &Limits::default())
                .unwrap();
            prop_assert!(!next.awaits().contains(&call));
            let again = Record::new(next.seq + 1, next.at_ms, vec![event]);
            prop_assert!(next.after(&again).is_err());
            session = next;
        }
    }

    #[test]
    fn requests_only_grow(script in script()) {
        let mut context = Context::default();
        let mut shown: Vec<Part> = Vec::new();
        for record in &script.records {
            context.push(record);
            let request = context.request(&Limits::default()).unwrap();
            let parts: Vec<Part> =
                request.messages.iter().flat_map(|message| message.parts.clone()).collect();
            prop_assert!(parts.starts_with(&shown));
            shown = parts;
        }
    }

    #[test]
    fn nothing_panics(script in script(), at in any::<u64>(), intent in any::<u64>()) {
        let limits = Limits::default();
        let _ = decide(&script.session, at, &limits);
        let _ = given_up(&script.session, intent, at, &limits);
        let _ = due_at_ms(&script.session, at, &limits);
        let _ = limits.retry_at_ms(at, u32::MAX, Some(at), intent);
        let _ = Record::decode(&at.to_le_bytes());
    }
}

/// What providers insist on.
fn validate(messages: &[Message]) -> Result<(), TestCaseError> {
    let mut asked: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let expected = if index % 2 == 0 { Role::User } else { Role::Assistant };
        prop_assert_eq!(message.role, expected);
        prop_assert!(!message.parts.is_empty());
        let mut answered: Vec<&str> = Vec::new();
        for part in &message.parts {
            if let Part::ToolResult { id, content, .. } = part {
                prop_assert!(content.iter().all(|block| !block.is_blank()));
                answered.push(id);
            }
            if let Part::Content(block) = part {
                prop_assert!(!block.is_blank());
            }
        }
        prop_assert_eq!(&answered, &asked);
        asked = message
            .parts
            .iter()
            .filter_map(|part| match part {
                Part::ToolUse { id, .. } => Some(id.as_str()),
                Part::Content(_) | Part::ToolResult { .. } | Part::Opaque { .. } => None,
            })
            .collect();
    }
    prop_assert!(asked.is_empty());
    Ok(())
}
