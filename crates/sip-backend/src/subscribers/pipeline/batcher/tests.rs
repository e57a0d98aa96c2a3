//! Tests of the queue under every rule, without a database.

use super::*;

const MS: Duration = Duration::from_millis(1);

fn rules(mode: Mode) -> Rules {
    Rules {
        mode,
        max_batch: 4,
        max_wait: 5 * MS,
        deadline: 1000 * MS,
        questions: 100,
    }
}

fn query(slot: u32, user: &str) -> CredentialQuery {
    CredentialQuery {
        origin: 1,
        id: Some(QueryId { slot, generation: 1 }),
        username: user.as_bytes().into(),
        user_len: user.len(),
        domain: b"d"[..].into(),
        realm: b"r"[..].into(),
    }
}

/// A queue with questions of users 0, 1, … `n - 1`, all asked at `now`.
fn filled(mode: Mode, now: Instant, n: u32) -> Batcher {
    let mut batcher = Batcher::new(rules(mode));
    batcher.set_sessions(1);
    for user in 0..n {
        ask(&mut batcher, now, query(user, &user.to_string())).expect("queued");
    }
    batcher
}

/// [`Batcher::ask`] without returning the question if it is refused.
fn ask(batcher: &mut Batcher, now: Instant, query: CredentialQuery) -> Result<Asked, Refusal> {
    batcher.ask(now, query).map_err(|(why, _)| why)
}

fn size(take: Take) -> usize {
    match take {
        Take::Batch(batch) => batch.flights.len(),
        Take::Wait(_) | Take::Closed => 0,
    }
}

fn batch(take: Take) -> Batch {
    match take {
        Take::Batch(batch) => batch,
        other @ (Take::Wait(_) | Take::Closed) => panic!("{other:?}"),
    }
}

#[test]
fn each_mode_sends_by_its_own_rule() {
    let t = Instant::now();
    // Mode, questions, connection busy, time passed, size of the batch.
    let table = [
        (Mode::Single, 9, false, 0, 1),
        (Mode::Fixed, 3, false, 0, 0),
        (Mode::Fixed, 3, false, 4, 0),
        (Mode::Fixed, 3, false, 5, 3),
        (Mode::Fixed, 4, false, 0, 4),
        (Mode::Fixed, 9, false, 0, 4),
        (Mode::Adaptive, 1, false, 0, 1),
        (Mode::Adaptive, 9, false, 0, 4),
        (Mode::Adaptive, 3, true, 4, 0),
        (Mode::Adaptive, 3, true, 5, 3),
        (Mode::Adaptive, 4, true, 0, 4),
    ];
    for (mode, questions, busy, ms, expected) in table {
        let mut batcher = filled(mode, t, questions);
        let taken = batcher.take(t + ms * MS, busy);
        if let Take::Wait(until) = taken {
            assert_eq!(until, Some(t + 5 * MS), "the clock is set");
        }
        assert_eq!(
            size(taken),
            expected,
            "{mode:?}, {questions} waiting, busy {busy}, after {ms} ms"
        );
    }
    let mut empty = filled(Mode::Adaptive, t, 0);
    assert!(matches!(empty.take(t, false), Take::Wait(None)));
}

#[test]
fn only_what_changes_something_wakes_a_connection() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Fixed, t, 0);
    let mut wakes = Vec::new();
    for user in 0..5 {
        wakes.push(ask(&mut batcher, t, query(user, &user.to_string())) == Ok(Asked::Queued { wake: true }));
        let _ = batcher.take(t, true);
    }
    // The first question sets the clock, the fourth fills the batch, the fifth is the first of the next.
    assert_eq!(wakes, [true, false, false, true, true]);
    // If the connection that set the clock is gone, the next question after that time wakes another.
    let late = ask(&mut batcher, t + 6 * MS, query(9, "9"));
    assert_eq!(late, Ok(Asked::Queued { wake: true }));
}

#[test]
fn connections_are_used_in_turn() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Adaptive, t, 1);
    batcher.set_sessions(8);
    let one = |batcher: &mut Batcher, user: u32, ms: u32| {
        ask(batcher, t + ms * MS, query(user, &user.to_string())).expect("queued");
        batcher.take(t + ms * MS, false)
    };
    assert_eq!(size(batcher.take(t, false)), 1, "nothing is known yet");
    batcher.succeeded(t, 32 * MS);
    assert_eq!(size(one(&mut batcher, 1, 32)), 1, "rare ones go at once");
    assert!(matches!(one(&mut batcher, 2, 33), Take::Wait(Some(at)) if at == t + 36 * MS));
    assert_eq!(
        size(one(&mut batcher, 3, 36)),
        2,
        "an eighth of the round trip later"
    );
    for user in 4..7 {
        assert_eq!(size(one(&mut batcher, user, 37)), 0);
    }
    assert_eq!(size(one(&mut batcher, 7, 37)), 4, "a full batch does not wait");
    // To a distant database, the wait is still bounded.
    for n in 1..=100 {
        batcher.succeeded(t + n * 800 * MS, 800 * MS);
    }
    assert!(matches!(one(&mut batcher, 8, 40), Take::Wait(Some(at)) if at == t + 45 * MS));
    // To a near database, waiting gains nothing.
    for n in 101..=200 {
        batcher.succeeded(t + n * 800 * MS, MS);
    }
    assert_eq!(size(batcher.take(t + 40 * MS, false)), 1);
}

#[test]
fn equal_questions_travel_once_and_all_are_answered() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Adaptive, t, 1);
    assert_eq!(ask(&mut batcher, t, query(7, "0")), Ok(Asked::Joined));
    let batch = batch(batcher.take(t, false));
    // A question also joins a flight under way.
    assert_eq!(ask(&mut batcher, t + MS, query(8, "0")), Ok(Asked::Joined));
    let mut other_realm = query(9, "0");
    other_realm.realm = b"other"[..].into();
    assert_eq!(
        ask(&mut batcher, t, other_realm),
        Ok(Asked::Queued { wake: true })
    );
    assert_eq!(
        (batcher.questions(), batcher.queued(), batcher.under_way()),
        (4, 1, 1)
    );
    let ended = batcher.settle(batch.flights[0].0).unwrap();
    let ids: Vec<u32> = ended.waiters.iter().map(|w| w.id.unwrap().slot).collect();
    assert_eq!(ids, [0, 7, 8]);
    assert!(batcher.settle(batch.flights[0].0).is_none(), "once");
    // The next question starts a new flight.
    assert_eq!(
        ask(&mut batcher, t, query(10, "0")),
        Ok(Asked::Queued { wake: true })
    );
}

#[test]
fn questions_are_bounded_joined_ones_too() {
    let t = Instant::now();
    let mut batcher = Batcher::new(Rules {
        questions: 3,
        ..rules(Mode::Adaptive)
    });
    assert_eq!(
        ask(&mut batcher, t, query(0, "a")),
        Ok(Asked::Queued { wake: true })
    );
    assert_eq!(ask(&mut batcher, t, query(1, "a")), Ok(Asked::Joined));
    assert_eq!(
        ask(&mut batcher, t, query(2, "b")),
        Ok(Asked::Queued { wake: true })
    );
    assert_eq!(ask(&mut batcher, t, query(3, "b")), Err(Refusal::Full));
    assert_eq!(ask(&mut batcher, t, query(3, "c")), Err(Refusal::Full));
    let batch = batch(batcher.take(t, false));
    batcher.settle(batch.flights[0].0);
    assert_eq!(batcher.questions(), 1);
    assert_eq!(
        ask(&mut batcher, t, query(4, "c")),
        Ok(Asked::Queued { wake: true })
    );
}

#[test]
fn every_question_ends_at_its_time_queued_or_under_way() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Single, t, 2);
    let first = batch(batcher.take(t, false));
    assert_eq!(first.deadline, t + 1000 * MS);
    ask(&mut batcher, t + 10 * MS, query(2, "2")).expect("queued");
    let mut ended = Vec::new();
    batcher.expire(t + 999 * MS, &mut ended);
    assert_eq!(ended.len(), 0);
    assert_eq!(batcher.next_deadline(), Some(t + 1000 * MS));
    batcher.expire(t + 1000 * MS, &mut ended);
    assert_eq!(ended.len(), 2, "the one under way and the one in the queue");
    assert_eq!((batcher.questions(), batcher.queued()), (1, 1));
    assert!(
        batcher.settle(first.flights[0].0).is_none(),
        "its answer comes too late"
    );
    let last = batch(batcher.take(t + 1000 * MS, false));
    assert_eq!(
        &*last.flights[0].1.username, b"2",
        "what ended in the queue is not sent"
    );
    batcher.settle(last.flights[0].0).unwrap();
    ended.clear();
    batcher.expire(t + 1000 * MS, &mut ended);
    assert_eq!(
        (ended.len(), batcher.next_deadline()),
        (0, None),
        "nothing is left behind"
    );
}

#[test]
fn a_batch_whose_connection_ends_goes_again_first_but_not_for_ever() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Adaptive, t, 6);
    let first = batch(batcher.take(t, false));
    let mut given_up = Vec::new();
    batcher.put_back(t + MS, t, &first, &mut given_up);
    assert_eq!((given_up.len(), batcher.queued()), (0, 6));
    let again = batch(batcher.take(t, false));
    let names = |batch: &Batch| {
        batch
            .flights
            .iter()
            .map(|f| f.1.username.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&again), names(&first), "in their order, before the others");
    batcher.put_back(t + 3 * MS, t + 2 * MS, &again, &mut given_up);
    let last = batch(batcher.take(t, false));
    batcher.put_back(t + 5 * MS, t + 4 * MS, &last, &mut given_up);
    assert_eq!((given_up.len(), batcher.queued()), (4, 2));
}

#[test]
fn what_silent_connections_carry_is_asked_again_twice() {
    let t = Instant::now();
    let answer = |batcher: &mut Batcher, batch: &Batch| {
        let ended = batch.flights.iter().filter_map(|(id, _)| batcher.settle(*id));
        ended.count()
    };
    for first_to_answer in 0..3 {
        let mut batcher = filled(Mode::Adaptive, t, 2);
        batcher.set_sessions(3);
        let mut sent = vec![batch(batcher.take(t, false))];
        for at in [250 * MS, 500 * MS] {
            assert_eq!(batcher.ask_again(t + at - MS), 0, "not yet");
            assert_eq!((batcher.ask_again(t + at), batcher.queued()), (2, 2));
            assert_eq!(batcher.ask_again(t + at), 0, "it waits already");
            sent.push(batch(batcher.take(t + at, false)));
        }
        assert_eq!(batcher.ask_again(t + 999 * MS), 0, "no third time");
        let first = sent.remove(first_to_answer);
        assert_eq!(answer(&mut batcher, &first), 2);
        for late in &sent {
            assert_eq!(answer(&mut batcher, late), 0, "it has its result");
        }
        assert_eq!(
            (batcher.queued(), batcher.under_way(), batcher.questions()),
            (0, 0, 0)
        );
    }
}

#[test]
fn what_is_asked_again_goes_back_when_both_connections_have_ended() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Adaptive, t, 2);
    batcher.set_sessions(2);
    let mut given_up = Vec::new();
    let first = batch(batcher.take(t, false));
    assert_eq!(batcher.ask_again(t + 250 * MS), 2);
    // A flight in the queue waits already.
    batcher.put_back(t + 260 * MS, t, &first, &mut given_up);
    assert_eq!(batcher.queued(), 2);
    let second = batch(batcher.take(t + 270 * MS, false));
    batcher.put_back(t + 280 * MS, t, &second, &mut given_up);
    assert_eq!((batcher.queued(), given_up.len()), (2, 0));
}

#[test]
fn a_slow_database_is_not_asked_twice() {
    let t = Instant::now();
    let cases: [fn(&mut Batcher, Instant); 3] = [
        // Four rounds (800 ms) are longer than the 600 ms that passed.
        |batcher, t| batcher.succeeded(t, 200 * MS),
        |batcher, _| batcher.set_sessions(1),
        |batcher, t| (0..9).for_each(|_| batcher.failed(t, Failure::Batch, &mut Vec::new())),
    ];
    for (number, case) in cases.into_iter().enumerate() {
        let mut batcher = filled(Mode::Adaptive, t, 2);
        batcher.set_sessions(2);
        let _first = batch(batcher.take(t, false));
        case(&mut batcher, t);
        assert_eq!(batcher.ask_again(t + 600 * MS), 0, "{number}");
    }
}

#[test]
fn a_connection_is_silent_as_soon_as_what_it_carries_is_asked_again() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Adaptive, t, 1);
    batcher.set_sessions(2);
    let first = batch(batcher.take(t, false));
    assert!(!batcher.is_silent(t + 249 * MS, first.sent));
    assert!(batcher.is_silent(t + 250 * MS, first.sent), "with or without");
    assert_eq!(batcher.ask_again(t + 250 * MS), 1);
    batcher.succeeded(t, 900 * MS);
    assert!(batcher.patience() > 3000 * MS);
    assert!(batcher.is_silent(t + 250 * MS, first.sent), "and stays so");
    assert!(!batcher.is_silent(t + 250 * MS, t + 10 * MS));
}

#[test]
fn what_was_sent_first_is_asked_again_first() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Adaptive, t, 3);
    batcher.set_sessions(2);
    let first = batch(batcher.take(t, false));
    assert_eq!(batcher.ask_again(t + 250 * MS), 3);
    let second = batch(batcher.take(t + 250 * MS, false));
    assert_eq!(second.flights, first.flights);
}

#[test]
fn what_was_due_while_asking_again_was_of_no_use_is_asked_again_later() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Adaptive, t, 2);
    let _first = batch(batcher.take(t, false));
    assert_eq!(batcher.ask_again(t + 600 * MS), 0, "no other connection is up");
    batcher.set_sessions(2);
    for _ in 0..6 {
        batcher.failed(t, Failure::Batch, &mut Vec::new());
    }
    assert_eq!(batcher.ask_again(t + 700 * MS), 0, "the breaker is open");
    batcher.succeeded(t, MS);
    assert_eq!(batcher.ask_again(t + 800 * MS), 2);
}

#[test]
fn what_waits_to_be_asked_again_is_bounded() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Single, t, 0);
    for user in 0..200 {
        let now = t + user * 10 * MS;
        batcher.expire(now, &mut Vec::new());
        ask(&mut batcher, now, query(user, &user.to_string())).expect("room in the queue");
        assert_eq!(size(batcher.take(now, false)), 1);
        assert_eq!(batcher.ask_again(now), 0);
        assert!(batcher.by_sending.len() <= 101, "only what is open");
    }
}

#[test]
fn connections_that_ended_together_count_once() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Adaptive, t, 1);
    let mut given_up = Vec::new();
    for n in 0..20 {
        let lost = batch(batcher.take(t, false));
        batcher.put_back(t + (10 + n) * MS, t + n * MS / 2, &lost, &mut given_up);
        assert_eq!((given_up.len(), batcher.queued()), (0, 1), "after {n}");
    }
    for (n, expected) in [(1, 0), (2, 1)] {
        let lost = batch(batcher.take(t, false));
        batcher.put_back(t + n * 100 * MS, t + (n * 100 - 50) * MS, &lost, &mut given_up);
        assert_eq!(given_up.len(), expected);
    }
}

#[test]
fn a_broken_database_gets_no_questions_until_a_probe_succeeds() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Adaptive, t, 3);
    batcher.set_sessions(0);
    let mut given_up = Vec::new();
    let refused = |begun| Failure::Connect { begun };
    // Eight connections that are refused together count once.
    for _ in 0..8 {
        batcher.failed(t + MS, refused(t), &mut given_up);
        assert_eq!(given_up.len(), 0);
    }
    batcher.failed(t + 3 * MS, refused(t + 2 * MS), &mut given_up);
    assert_eq!(given_up.len(), 3, "what waited is answered at once");
    assert_eq!(ask(&mut batcher, t, query(5, "5")), Err(Refusal::Broken));
    let later = t + Duration::from_secs(10);
    assert_eq!(
        ask(&mut batcher, later, query(5, "5")),
        Err(Refusal::Broken),
        "no connection"
    );
    batcher.set_sessions(2);
    for user in 10..20 {
        assert!(matches!(
            ask(&mut batcher, later, query(user, &user.to_string())),
            Ok(Asked::Queued { .. })
        ));
    }
    let probe = batch(batcher.take(later, false));
    assert!(
        matches!(batcher.take(later, false), Take::Wait(None)),
        "one at a time"
    );
    batcher.succeeded(t, MS);
    for (id, _) in &probe.flights {
        batcher.settle(*id).unwrap();
    }
    assert_eq!(size(batcher.take(later, false)), 4);
    // Failures to connect count for nothing while another connection is up.
    for _ in 0..100 {
        batcher.failed(later, refused(later), &mut given_up);
    }
    assert_eq!(batcher.breaker().opened(), 1);
}

#[test]
fn what_the_database_refuses_goes_again_one_by_one() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Adaptive, t, 3);
    let refused = batch(batcher.take(t, false));
    let mut given_up = Vec::new();
    batcher.separate(&refused, &mut given_up);
    ask(&mut batcher, t, query(9, "9")).expect("queued");
    assert_eq!((given_up.len(), batcher.queued()), (0, 4));
    for user in 0..3 {
        let alone = batch(batcher.take(t, false));
        assert_eq!(alone.flights.len(), 1);
        assert_eq!(&*alone.flights[0].1.username, user.to_string().as_bytes());
        if user == 1 {
            batcher.separate(&alone, &mut given_up);
        } else {
            batcher.settle(alone.flights[0].0).unwrap();
        }
    }
    assert_eq!(given_up.len(), 1, "the one that it was");
    assert_eq!(size(batcher.take(t, false)), 1, "and then the rest");
    assert_eq!(batcher.breaker().state(), State::Closed);
}

#[test]
fn a_question_sent_before_a_change_is_joined_by_no_other() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Adaptive, t, 1);
    let before = batch(batcher.take(t, false));
    batcher.changed();
    assert_eq!(
        ask(&mut batcher, t, query(5, "0")),
        Ok(Asked::Queued { wake: true })
    );
    assert_eq!(ask(&mut batcher, t, query(6, "0")), Ok(Asked::Joined));
    let after = batch(batcher.take(t, false));
    let slots = |ended: Ended| {
        ended
            .waiters
            .iter()
            .map(|w| w.id.unwrap().slot)
            .collect::<Vec<_>>()
    };
    assert_eq!(slots(batcher.settle(before.flights[0].0).unwrap()), [0]);
    assert_eq!(slots(batcher.settle(after.flights[0].0).unwrap()), [5, 6]);
    assert_eq!((batcher.questions(), batcher.under_way()), (0, 0));
}

#[test]
fn what_is_asked_again_after_a_change_is_not_joined_either() {
    let t = Instant::now();
    for sent_again in [false, true] {
        let mut batcher = filled(Mode::Adaptive, t, 1);
        batcher.set_sessions(2);
        let before = batch(batcher.take(t, false));
        batcher.changed();
        assert_eq!(batcher.ask_again(t + 500 * MS), 1);
        if sent_again {
            assert_eq!(size(batcher.take(t + 500 * MS, false)), 1);
        }
        let later = ask(&mut batcher, t + 510 * MS, query(5, "0"));
        assert!(matches!(later, Ok(Asked::Queued { .. })), "{later:?}");
        // The first connection returns late with what it read before the change.
        let ended = batcher.settle(before.flights[0].0).expect("it was open");
        assert_eq!(ended.waiters.len(), 1);
        assert_eq!(batcher.questions(), 1, "the later question waits on");
    }
}

/// The database pauses for more than half of the deadline. What waited for that is answered when it goes on: its pause
/// is no measure of its round.
#[test]
fn a_pause_of_the_database_is_not_taken_for_its_round() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Single, t, 0);
    batcher.set_sessions(3);
    let mut under_way = Vec::new();
    for user in 0..24 {
        let now = t + user * 5 * MS;
        batcher.succeeded(now, 2 * MS);
        ask(&mut batcher, now, query(user, &user.to_string())).expect("room in the queue");
        // Three connections carry four batches each; the others wait.
        if user < 12 {
            under_way.push(batch(batcher.take(now, true)));
        }
    }
    let goes_on = t + 700 * MS;
    assert!(batcher.ask_again(goes_on) > 0);
    for batch in &under_way {
        batcher.answered(batch.sent);
        for (id, _) in &batch.flights {
            assert!(batcher.settle(*id).is_some());
        }
        batcher.succeeded(goes_on, goes_on - batch.sent);
    }
    assert_eq!(batcher.queued(), 12);
    for left in (0..12).rev() {
        let next = batch(batcher.take(goes_on, true));
        assert_eq!((next.flights.len(), next.too_late.len()), (1, 0));
        assert_eq!(batcher.queued(), left);
    }
}

/// Asks twice as much as one connection carries, for half a minute. The delay is not taken for silence, and
/// the results that come are of use.
#[test]
fn under_overload_what_can_be_carried_is_carried() {
    const ROUND: Duration = Duration::from_millis(20);
    let start = Instant::now();
    let mut batcher = filled(Mode::Single, start, 0);
    let (mut carried, mut ended) = (0, Vec::new());
    let mut under_way: Option<(Instant, Batch)> = None;
    for ms in 0..30_000_u32 {
        let now = start + ms * MS;
        if ms % 10 == 0 {
            ask(&mut batcher, now, query(ms, &ms.to_string())).expect("room in the queue");
        }
        batcher.expire(now, &mut ended);
        if let Some((sent, batch)) = under_way.take_if(|(sent, _)| now >= *sent + ROUND) {
            assert!(now < batch.deadline, "the connection would have been given up");
            batcher.succeeded(now, now - sent);
            carried += u32::from(batcher.settle(batch.flights[0].0).is_some());
        }
        while under_way.is_none()
            && let Take::Batch(mut batch) = batcher.take(now, false)
        {
            ended.append(&mut batch.too_late);
            if !batch.flights.is_empty() {
                under_way = Some((now, batch));
            }
        }
    }
    let most = 30_000 / 20;
    assert!(carried > most * 95 / 100, "{carried} of {most}");
    assert!(ended.len() > 1000, "the others were told");
}

#[test]
fn a_probe_that_came_too_late_leaves_room_for_another() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Adaptive, t, 0);
    for n in 1..=100 {
        batcher.succeeded(t + n * 800 * MS, 800 * MS);
    }
    let mut given_up = Vec::new();
    for _ in 0..6 {
        batcher.failed(t, Failure::Batch, &mut given_up);
    }
    let later = t + Duration::from_secs(10);
    ask(&mut batcher, later, query(1, "1")).expect("queued");
    let late = batch(batcher.take(later + 900 * MS, false));
    assert_eq!((late.flights.len(), late.too_late.len()), (0, 1));
    ask(&mut batcher, later + 900 * MS, query(2, "2")).expect("queued");
    assert_eq!(
        size(batcher.take(later + 910 * MS, false)),
        1,
        "the next one probes"
    );
}

#[test]
fn after_the_end_the_queue_is_emptied_and_closed() {
    let t = Instant::now();
    let mut batcher = filled(Mode::Fixed, t, 2);
    batcher.close();
    assert_eq!(ask(&mut batcher, t, query(3, "3")), Err(Refusal::Closed));
    assert_eq!(size(batcher.take(t, false)), 2, "without waiting for more");
    assert!(matches!(batcher.take(t, false), Take::Closed));
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Ask {
            user: u8,
        },
        Take {
            busy: bool,
        },
        /// The batch sent first, or the one sent last.
        Settle {
            first: bool,
        },
        Lose,
        Separate,
        Pass {
            ms: u16,
        },
        AskAgain,
        Fail,
        Change,
        Sessions {
            count: usize,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..12_u8).prop_map(|user| Step::Ask { user }),
            3 => any::<bool>().prop_map(|busy| Step::Take { busy }),
            2 => any::<bool>().prop_map(|first| Step::Settle { first }),
            1 => Just(Step::Lose),
            1 => Just(Step::Separate),
            1 => (0..700_u16).prop_map(|ms| Step::Pass { ms }),
            1 => Just(Step::AskAgain),
            1 => Just(Step::Fail),
            1 => Just(Step::Change),
            1 => (0..4_usize).prop_map(|count| Step::Sessions { count }),
        ]
    }

    proptest! {
        /// In any sequence of events, each accepted question ends exactly once and nothing stays. No result
        /// is older than the last change before its question.
        #[test]
        fn each_question_ends_once(
            mode in prop_oneof![Just(Mode::Single), Just(Mode::Fixed), Just(Mode::Adaptive)],
            steps in proptest::collection::vec(step(), 0..200),
        ) {
            let mut now = Instant::now();
            let mut batcher = Batcher::new(Rules { questions: 20, ..rules(mode) });
            batcher.set_sessions(2);
            // The changes before each open question, and before each batch.
            let (mut open, mut done) = (std::collections::BTreeMap::new(), Vec::new());
            let (mut flying, mut slot, mut again, mut changes) = (Vec::new(), 0, 0, 0);
            for step in steps {
                match step {
                    Step::Ask { user } => {
                        slot += 1;
                        match ask(&mut batcher, now, query(slot, &user.to_string())) {
                            Ok(Asked::Queued { .. } | Asked::Joined) => { open.insert(slot, changes); }
                            Err(Refusal::Full) => prop_assert!(batcher.questions() == 20),
                            Err(Refusal::Broken | Refusal::Closed) => {}
                        }
                    }
                    Step::Take { busy } => {
                        if let Take::Batch(mut batch) = batcher.take(now, busy) {
                            // Flights sent again too late are left to the first connection.
                            prop_assert!(again > 0 || !batch.flights.is_empty() || !batch.too_late.is_empty());
                            prop_assert!(batch.flights.len() <= 4);
                            done.append(&mut batch.too_late);
                            flying.extend((!batch.flights.is_empty()).then_some((changes, batch)));
                        }
                    }
                    Step::Settle { first } => if !flying.is_empty() {
                        let (sent, batch) = flying.remove(if first { 0 } else { flying.len() - 1 });
                        batcher.succeeded(now, MS);
                        done.extend(batch.flights.iter().filter_map(|(id, _)| batcher.settle(*id)));
                        for waiter in done.iter().flat_map(|ended| &ended.waiters) {
                            prop_assert!(open[&waiter.id.unwrap().slot] <= sent, "read before a change");
                        }
                    },
                    Step::Lose => if let Some((_, batch)) = flying.pop() {
                        batcher.put_back(now, now, &batch, &mut done);
                    },
                    Step::Separate => if let Some((_, batch)) = flying.pop() {
                        batcher.separate(&batch, &mut done);
                    },
                    Step::Pass { ms } => {
                        now += u32::from(ms) * MS;
                        batcher.expire(now, &mut done);
                    }
                    Step::AskAgain => again += batcher.ask_again(now),
                    Step::Fail => batcher.failed(now, Failure::Batch, &mut done),
                    Step::Change => {
                        batcher.changed();
                        changes += 1;
                    }
                    Step::Sessions { count } => batcher.set_sessions(count),
                }
                prop_assert!(batcher.questions() <= 20);
                for waiter in done.drain(..).flat_map(|ended| ended.waiters) {
                    prop_assert!(open.remove(&waiter.id.unwrap().slot).is_some(), "answered twice");
                }
                prop_assert_eq!(batcher.questions(), open.len());
            }
            batcher.expire(now + Duration::from_secs(60), &mut done);
            for waiter in done.drain(..).flat_map(|ended| ended.waiters) {
                prop_assert!(open.remove(&waiter.id.unwrap().slot).is_some(), "answered twice");
            }
            prop_assert!(open.is_empty());
            prop_assert_eq!((batcher.questions(), batcher.queued(), batcher.under_way()), (0, 0, 0));
            prop_assert_eq!(batcher.next_deadline(), None);
        }
    }
}
