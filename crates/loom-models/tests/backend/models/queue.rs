//! The queue before a store's thread: nothing is lost or doubled, order is kept, bounds hold, a waiting
//! thread is woken.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use loom_models::explore;

use crate::queue::{Queue, Taken};

/// Longer than any model: only being woken ends it.
const LONG: Duration = Duration::from_secs(60);

/// Takes until the queue is closed and empty; what came, in order.
fn consume(queue: &Queue<u32>) -> Vec<u32> {
    let (mut all, mut taken) = (vec![], vec![]);
    loop {
        match queue.take(&mut taken, LONG) {
            Taken::Items => {
                assert!(!taken.is_empty() && taken.len() <= 2, "the bound holds");
                all.append(&mut taken);
            }
            Taken::TimedOut => {}
            Taken::Closed => return all,
        }
    }
}

#[test]
fn each_item_is_taken_once_or_refused_and_order_is_kept() {
    explore(|| {
        let queue = Arc::new(Queue::new(2, 100));
        let producers: Vec<_> = [vec![10u32, 11], vec![20]]
            .map(|items| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    let mut refused = vec![];
                    queue.push_all(items, |_| 1, &mut refused);
                    refused
                })
            })
            .into();
        let consumer = thread::spawn({
            let queue = Arc::clone(&queue);
            move || consume(&queue)
        });
        let mut refused = vec![];
        for producer in producers {
            refused.extend(producer.join().expect("it ran to its end"));
        }
        queue.close();
        let taken = consumer.join().expect("it ran to its end");
        let of_first: Vec<u32> = taken.iter().copied().filter(|item| *item < 20).collect();
        assert!(of_first.is_sorted(), "{taken:?}");
        let mut all = [taken, refused].concat();
        all.sort_unstable();
        assert_eq!(all, [10, 11, 20]);
    });
}

#[test]
fn the_weight_is_given_back_with_the_items() {
    explore(|| {
        let queue = Arc::new(Queue::new(8, 10));
        let push = |queue: &Queue<u32>, items: &[u32]| {
            let mut refused = vec![];
            queue.push_all(items.iter().copied(), |item| *item as usize, &mut refused);
            refused
        };
        assert!(push(&queue, &[6]).is_empty());
        let consumer = thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                let mut taken = vec![];
                queue.take(&mut taken, LONG);
                taken
            }
        });
        let refused = push(&queue, &[7]);
        let mut all = consumer.join().expect("it ran to its end");
        let mut rest = vec![];
        queue.take(&mut rest, Duration::ZERO);
        all.extend(rest.into_iter().chain(refused));
        assert_eq!(all, [6, 7]);
        assert!(push(&queue, &[5, 5]).is_empty(), "room for all of it again");
        assert_eq!(push(&queue, &[1]), [1]);
    });
}

/// What no peer can cause passes at the bound, and wakes by itself.
#[test]
fn an_order_wakes_and_passes_at_the_bound() {
    explore(|| {
        let queue = Arc::new(Queue::new(1, 100));
        let consumer = thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                let (mut all, mut taken) = (vec![], vec![]);
                while !all.contains(&99) {
                    queue.take(&mut taken, LONG);
                    all.append(&mut taken);
                }
                all
            }
        });
        let mut refused = vec![];
        queue.push_all([1], |_| 1, &mut refused);
        assert!(queue.push_control(99));
        let taken = consumer.join().expect("it ran to its end");
        assert_eq!(([taken, refused].concat(), queue.len()), (vec![1, 99], 0));
    });
}

#[test]
fn a_wait_that_ends_by_time_loses_nothing() {
    explore(|| {
        let queue = Arc::new(Queue::new(8, 8));
        let producer = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.push_all([1], |_| 1, &mut vec![])
        });
        let mut taken = vec![];
        let first = queue.take(&mut taken, Duration::ZERO);
        assert_eq!(first == Taken::Items, taken == [1]);
        if taken.is_empty() {
            assert_eq!(queue.take(&mut taken, LONG), Taken::Items);
        }
        producer.join().expect("it ran to its end");
        assert_eq!((taken, queue.len()), (vec![1], 0));
    });
}

#[test]
fn closing_wakes_and_refuses_what_comes_after() {
    explore(|| {
        let queue = Arc::new(Queue::new(8, 8));
        let consumer = thread::spawn({
            let queue = Arc::clone(&queue);
            move || consume(&queue)
        });
        let producer = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.push_control(1)
        });
        queue.close();
        let mut refused = vec![];
        queue.push_all([2], |_| 1, &mut refused);
        assert_eq!(refused, [2]);
        let was_taken = producer.join().expect("it ran to its end");
        let taken = consumer.join().expect("it ran to its end");
        assert_eq!(taken.contains(&1), was_taken);
    });
}
