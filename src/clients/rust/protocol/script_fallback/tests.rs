//! What a connection learns of its server, and what it sends again.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::*;
use crate::demand::Demand;
use crate::protocol::command::{Clause, HoldClause};
use crate::quota::Quota;

const TIMEOUT: Duration = Duration::from_millis(50);
/// In place of a reply: none comes.
const SILENCE: &str = "silence";
/// In place of a reply: the connection ends.
const END: &str = "end";

/// A server that gives prepared replies, in turn; and the names of the commands that it got.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<(VecDeque<Reply>, Vec<String>)>>);

impl Connection for Scripted {
    fn send(&self, command: &dyn Words) -> Pending<Reply> {
        let mut inner = self.0.lock();
        let mut words = Vec::new();
        command.each(&mut |word| words.push(String::from_utf8_lossy(word).into_owned()));
        inner.1.push(words.swap_remove(0));
        let reply = inner.0.pop_front().unwrap();
        Box::pin(async move {
            match reply {
                Reply::Error(text) if text == SILENCE => std::future::pending().await,
                Reply::Error(text) if text == END => Err(Failure::Connection(Reason::Disconnected.because("reset"))),
                reply => Ok(reply),
            }
        })
    }

    fn send_all(&self, commands: &[&dyn Words]) -> Pending<Reply> {
        let replies: Vec<_> = commands.iter().map(|command| self.send(*command)).collect();
        Box::pin(async move {
            let mut all = Vec::new();
            for reply in replies {
                all.push(reply.await?);
            }
            Ok(Reply::Array(all))
        })
    }
}

impl Scripted {
    fn connected(&self, module: Module) -> Encoded {
        self.counted(module, Arc::new(Counters::new()))
    }

    fn counted(&self, module: Module, counters: Arc<Counters>) -> Encoded {
        Encoded::new(Box::new(self.clone()), module, TIMEOUT, counters, Arc::default())
    }

    fn says(&self, replies: impl IntoIterator<Item = Reply>) {
        self.0.lock().0.extend(replies);
    }

    /// The names of what was sent since the last time.
    fn was_asked(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().1)
    }
}

fn error(text: &str) -> Reply {
    Reply::Error(text.into())
}

fn demand() -> Demand {
    Demand::of(&Quota::new(5, "1m").unwrap())
}

fn allow() -> Command {
    Command::allow(b"k", &demand())
}

fn hold(id: &[u8]) -> Command {
    let hold = HoldClause { limit: 5, ttl: 60_000, id: id.into(), cost: 1, own_id: true };
    Command::Hold { key: b"k"[..].into(), hold, wait: None }
}

#[tokio::test]
async fn found_out_by_the_first_reply() {
    let server = Scripted::default();
    let connection = server.connected(Module::Auto);
    server.says([Reply::Integer(1), Reply::Integer(2)]);
    assert_eq!(connection.backend(), None);
    assert_eq!(connection.send(&allow()).await, Ok(Reply::Integer(1)));
    assert_eq!(connection.backend(), Some(Backend::Module));
    connection.send(&allow()).await.unwrap();
    assert_eq!(server.was_asked(), ["SWLIMIT.ALLOW"; 2]);

    let connection = server.connected(Module::Auto);
    let unknown = "ERR unknown command 'SWLIMIT.ALLOW', with args beginning with: 'k' ";
    server.says([error(unknown), error("NOSCRIPT No matching script."), Reply::Integer(3)]);
    assert_eq!(connection.send(&allow()).await, Ok(Reply::Integer(3)));
    assert_eq!(connection.backend(), Some(Backend::Script));
    assert_eq!(server.was_asked(), ["SWLIMIT.ALLOW", "EVALSHA", "EVAL"]);
    // What it has not is asked for as it is.
    server.says([error("ERR unknown command 'SWLIMIT.TOP'")]);
    connection.send(&Command::Top { count: 10 }).await.unwrap();
    assert_eq!(server.was_asked(), ["SWLIMIT.TOP"]);

    let connection = server.connected(Module::Always);
    server.says([error(unknown)]);
    assert_eq!(connection.send(&allow()).await, Ok(error(unknown)));
    assert_eq!(connection.backend(), None);
}

/// A server's error would quote what it does not know.
#[tokio::test]
async fn found_out_before_bytes_are_sent() {
    let unknown = "ERR unknown command 'SWLIMIT.PEEK', with args beginning with: ";
    let hold = hold(b"\xff");
    let server = Scripted::default();
    let connection = server.connected(Module::Auto);
    server.says([error(unknown)].into_iter().chain(IDS.map(unknown_name)).chain([Reply::Integer(1)]));
    assert_eq!(connection.send(&hold).await, Ok(Reply::Integer(1)));
    assert_eq!(connection.backend(), Some(Backend::Script));

    for (module, why) in [(Module::Always, unknown), (Module::Auto, "LOADING Redis is loading")] {
        let connection = server.connected(module);
        server.says([(); 6].map(|()| error(why)));
        assert_eq!((connection.send(&hold).await, connection.backend()), (Ok(error(why)), None));
    }

    let connection = server.connected(Module::Auto);
    server.says([known("peek")].into_iter().chain(IDS.map(known)).chain([Reply::Integer(1)]));
    let replies = connection.send_all(std::slice::from_ref(&hold)).await;
    assert_eq!((replies, connection.backend()), (Ok(Reply::Array(vec![Reply::Integer(1)])), Some(Backend::Module)));
    let names = ["PEEK"].into_iter().chain(IDS).map(|name| format!("SWLIMIT.{name}"));
    let names: Vec<_> = names.collect();
    let (script, module) = ([String::from("EVALSHA")], [String::from("SWLIMIT.HOLD")]);
    assert_eq!(server.was_asked(), [&names, &script[..], &names, &names, &names, &module].concat());
}

/// Commands with ids.
const IDS: [&str; 5] = ["HOLD", "RENEW", "RELEASE", "ADMIT", "SETTLE"];

fn known(name: &str) -> Reply {
    error(&format!("ERR wrong number of arguments for 'swlimit.{name}' command"))
}

fn unknown_name(name: &str) -> Reply {
    error(&format!("ERR unknown command 'SWLIMIT.{name}', with args beginning with: "))
}

/// An error about an id would quote its bytes, and end the connection. Whatever a module lacks is not the script's.
#[tokio::test]
async fn a_module_that_is_too_old_is_asked_by_names_alone() {
    let too_old = |name: &str| Ok(error(&format!("TOOOLD SWLIMIT.{name}")));
    let server = Scripted::default();
    let connection = server.connected(Module::Auto);
    server.says([Reply::Integer(1), known("hold"), known("renew"), known("release")]);
    server.says(["ADMIT", "SETTLE"].map(unknown_name));
    connection.send(&allow()).await.unwrap();
    let admit = |id: &[u8]| {
        let clause = HoldClause { limit: 5, ttl: 60_000, id: id.into(), cost: 1, own_id: true };
        Command::Admit { members: vec![(b"k"[..].into(), Clause::Hold(clause))], strict: false }
    };
    for _ in 0..2 {
        assert_eq!(connection.send(&admit(b"\xff")).await, too_old("ADMIT"));
    }
    assert_eq!(server.was_asked().len(), 6);
    // What is there needs no further question; of what needs no id, the reply itself says that it is missing.
    server.says([Reply::Integer(2)]);
    assert_eq!(connection.send(&hold(b"\xff")).await, Ok(Reply::Integer(2)));
    assert_eq!(server.was_asked(), ["SWLIMIT.HOLD"]);
    let acquire = Command::acquire(b"k", &demand(), 0);
    server.says([unknown_name("ACQUIRE"), known("peek")]);
    assert_eq!((connection.send(&acquire).await, connection.backend()), (too_old("ACQUIRE"), Some(Backend::Module)));

    let connection = server.connected(Module::Auto);
    server.says([unknown_name("ACQUIRE"), known("peek")]);
    assert_eq!((connection.send(&acquire).await, connection.backend()), (too_old("ACQUIRE"), Some(Backend::Module)));
    // A module that was unloaded is not too old.
    server.says([unknown_name("ACQUIRE"), unknown_name("PEEK")]);
    assert_eq!(connection.send(&acquire).await, Ok(unknown_name("ACQUIRE")));
}

/// A server that has neither the module nor scripts is asked for the module again: it may be loading it.
#[tokio::test]
async fn a_server_that_has_neither_for_a_while() {
    let unknown = |name: &str| error(&format!("ERR unknown command '{name}', with args beginning with: 'EVALSHA' "));
    let neither = ["SWLIMIT.ALLOW", "EVALSHA"].map(unknown);
    let server = Scripted::default();
    let connection = server.connected(Module::Auto);
    for _ in 0..2 {
        server.says(neither.clone());
        assert_eq!((connection.send(&allow()).await, connection.backend()), (Ok(unknown("EVALSHA")), None));
    }
    server.says(["SWLIMIT.ALLOW", "SWLIMIT.ALLOW", "EVALSHA", "EVALSHA"].map(unknown));
    let (one, other) = (connection.send(&allow()), connection.send(&allow()));
    assert_eq!((one.await, other.await), (Ok(unknown("EVALSHA")), Ok(unknown("EVALSHA"))));
    server.says([Reply::Integer(1)]);
    assert_eq!(connection.send(&allow()).await, Ok(Reply::Integer(1)));
    assert_eq!(connection.backend(), Some(Backend::Module));

    let connection = server.connected(Module::Never);
    server.was_asked();
    for _ in 0..2 {
        server.says([unknown("EVALSHA")]);
        assert_eq!(connection.send(&allow()).await, Ok(unknown("EVALSHA")));
    }
    assert_eq!(server.was_asked(), ["EVALSHA"; 2]);
}

/// What the script has not got tells whether the module has been loaded meanwhile.
#[tokio::test]
async fn a_module_that_is_loaded_later() {
    let top = Command::Top { count: 1 };
    let known = || error("ERR wrong number of arguments for 'swlimit.top' command");
    let server = Scripted::default();
    let connection = server.connected(Module::Auto);
    server.says([error("ERR unknown command 'SWLIMIT.ALLOW'"), Reply::Integer(1)]);
    connection.send(&allow()).await.unwrap();
    server.says([known(), known(), Reply::Integer(2), Reply::Integer(3)]);
    let (one, other) = (connection.send(&top), connection.send(&top));
    assert_eq!((one.await, other.await), (Ok(Reply::Integer(2)), Ok(Reply::Integer(3))));
    assert_eq!(connection.backend(), Some(Backend::Module));
    let asked = ["SWLIMIT.ALLOW", "EVALSHA"].into_iter().chain(["SWLIMIT.TOP"; 4]);
    assert_eq!(server.was_asked(), asked.collect::<Vec<_>>());

    let connection = server.connected(Module::Never);
    server.says([known()]);
    assert_eq!(connection.send(&top).await, Ok(error("ERR unknown command 'SWLIMIT.TOP'")));
    assert_eq!(connection.backend(), Some(Backend::Script));
}

/// Keys that the script wrote are the module's from the first command on that names them, wherever it is sent.
#[tokio::test]
async fn keys_are_taken_over() {
    let (wrong, known) =
        (|| error("WRONGTYPE x"), || error("ERR wrong number of arguments for 'swlimit.peek' command"));
    let (server, counters) = (Scripted::default(), Arc::new(Counters::new()));
    let connection = server.counted(Module::Auto, Arc::clone(&counters));
    // By the module, and the server does not know the take-over script yet.
    server.says([wrong(), known(), error("NOSCRIPT x"), Reply::Integer(1), Reply::Integer(7)]);
    assert_eq!(connection.send(&allow()).await, Ok(Reply::Integer(7)));
    let asked = ["SWLIMIT.ALLOW", "SWLIMIT.PEEK", "EVALSHA", "EVAL", "SWLIMIT.ALLOW"];
    assert_eq!(server.was_asked(), asked);
    // What it is refused with is the reply; another program's key stays of a wrong type.
    server.says([wrong(), error("ERR too many"), wrong(), Reply::Integer(0), wrong()]);
    assert_eq!(connection.send(&allow()).await, Ok(error("ERR too many")));
    assert_eq!(connection.send(&allow()).await, Ok(wrong()));
    server.says([wrong(), error("ERR unknown command 'EVALSHA'"), wrong()]);
    assert_eq!((connection.send(&allow()).await, connection.backend()), (Ok(wrong()), Some(Backend::Module)));
    server.was_asked();
    // Of a pipeline, only what was not executed is sent again, each with the word that it may be asked here.
    let settle = Command::Settle { key: b"k"[..].into(), id: b"h"[..].into(), reserved: vec![(b"l"[..].into(), 1)] };
    server.says(IDS.map(super::tests::known));
    server.says([Reply::Nil, wrong(), Reply::Nil, Reply::Integer(2)]);
    server.says([Reply::Nil, Reply::Integer(1), Reply::Nil, Reply::Integer(1)]);
    server.says([Reply::Nil, Reply::Integer(3)]);
    let commands = [Command::ASKING, settle, Command::ASKING, allow()];
    let expected = [Reply::Nil, Reply::Integer(3), Reply::Nil, Reply::Integer(2)];
    assert_eq!(connection.send_all(&commands).await, Ok(Reply::Array(expected.to_vec())));
    let (asking, taken) = (["ASKING", "SWLIMIT.SETTLE"], ["ASKING", "EVALSHA", "ASKING", "EVALSHA"]);
    let ids = IDS.map(|name| format!("SWLIMIT.{name}"));
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    let asked = [&ids[..], &asking, &["ASKING", "SWLIMIT.ALLOW"], &taken, &asking].concat();
    assert_eq!(
        (server.was_asked(), counters.sums().taken_over),
        (asked.iter().map(|name| name.to_string()).collect(), 3)
    );
}

/// The replies to the others' commands count, though the connection ends or falls silent while a key is taken over. Where
/// that key's command was sent again, it is unknown whether it was executed: its refusal does not hold. Nor does it where
/// the connection ended before; a server that is slow may have meant it.
#[tokio::test(start_paused = true)]
async fn replies_that_came_are_kept() {
    let taken = || Some(Reply::Integer(1));
    for (answered, end, left) in [
        (None, SILENCE, error("WRONGTYPE x")),
        (taken(), SILENCE, Reply::Nil),
        (None, END, error("NOTEXECUTED reset")),
        (taken(), END, Reply::Nil),
    ] {
        let server = Scripted::default();
        let connection = server.connected(Module::Auto);
        server.says([Reply::Integer(3), error("WRONGTYPE x")].into_iter().chain(answered).chain([error(end)]));
        let sent = connection.send_all(&[allow(), allow()]);
        let came = Reply::Array(vec![Reply::Integer(3), left]);
        assert_eq!(tokio::time::timeout(3 * TIMEOUT, sent).await, Ok(Ok(came)));
    }
    // What only goes with a command counts nothing, so that fails as if it were alone.
    for beside in [Command::ASKING, Command::TIME] {
        let server = Scripted::default();
        let connection = server.connected(Module::Auto);
        server.says([Reply::Nil, error("WRONGTYPE x"), error("ERR wrong number of arguments")]);
        server.says([error(SILENCE), error(SILENCE)]);
        let sent = connection.send_all(&[beside, allow()]);
        assert!(tokio::time::timeout(3 * TIMEOUT, sent).await.is_err());
    }
}

/// To the script, the module's keys are of a wrong type.
#[tokio::test]
async fn the_module_is_asked_about_keys_that_are_not_the_scripts() {
    let wrong = || error("WRONGTYPE x");
    let server = Scripted::default();
    let connection = server.connected(Module::Auto);
    let unknown = error("ERR unknown command 'SWLIMIT.PEEK', with args beginning with: ");
    server.says([error("ERR unknown command 'SWLIMIT.ALLOW'"), wrong(), unknown]);
    assert_eq!((connection.send(&allow()).await, connection.backend()), (Ok(wrong()), Some(Backend::Script)));
    server.says([wrong(), error("ERR wrong number of arguments for 'swlimit.peek' command")]);
    server.says([Reply::Integer(0), Reply::Integer(9)]);
    assert_eq!((connection.send(&allow()).await, connection.backend()), (Ok(Reply::Integer(9)), Some(Backend::Module)));
    let by_script = ["SWLIMIT.ALLOW", "EVALSHA", "SWLIMIT.PEEK"];
    assert_eq!(server.was_asked(), [&by_script[..], &["EVALSHA", "SWLIMIT.PEEK", "EVALSHA", "SWLIMIT.ALLOW"]].concat());

    let connection = server.connected(Module::Never);
    server.says([wrong()]);
    assert_eq!(connection.send(&allow()).await, Ok(wrong()));
}

/// Only what was not executed is asked again, in order, and each with the word that it may be asked here.
#[tokio::test]
async fn a_script_that_is_missing_in_a_pipeline() {
    let server = Scripted::default();
    let connection = server.connected(Module::Never);
    server.was_asked();
    let peek = Command::peek(b"k", &demand());
    let commands = [Command::TIME, Command::ASKING, allow(), Command::ASKING, peek];
    let replies = [Reply::Integer(0), Reply::Nil, Reply::Integer(2), Reply::Nil, error("NOSCRIPT x")];
    server.says(replies);
    server.says([Reply::Nil, error("ERR unknown command 'EVAL_RO'")]);
    server.says([Reply::Nil, Reply::Integer(5)]);
    let expected = [Reply::Integer(0), Reply::Nil, Reply::Integer(2), Reply::Nil, Reply::Integer(5)];
    assert_eq!(connection.send_all(&commands).await, Ok(Reply::Array(expected.to_vec())));
    let expected = ["TIME", "ASKING", "EVALSHA", "ASKING", "EVALSHA_RO", "ASKING", "EVAL_RO", "ASKING", "EVALSHA"];
    assert_eq!(server.was_asked(), expected);
    // A user who may not send its text gets that error.
    server.says([error("NOSCRIPT x"), error("NOPERM no")]);
    assert_eq!(connection.send(&allow()).await, Ok(error("NOPERM no")));
}

/// The script answers bytes with bytes.
#[tokio::test]
async fn decisions_come_packed() {
    let bytes = |numbers: [f64; 3]| Reply::Bytes(numbers.into_iter().flat_map(f64::to_le_bytes).collect());
    let decision = |numbers: [i64; 5]| Reply::Array(numbers.map(Reply::Integer).to_vec());
    let server = Scripted::default();
    let connection = server.connected(Module::Never);
    let most = (1_i64 << 53) - 1;
    server.says([bytes([2.0, most as f64, 60_000.0]), bytes([-0.0, -1.0, 0.0]), bytes([-3.0, 7.0, 9.0])]);
    assert_eq!(connection.send(&allow()).await, Ok(decision([2, 5, most, 0, 60_000])));
    let both = vec![decision([0, 5, 0, -1, 0]), decision([0, 5, 3, 7, 9])];
    assert_eq!(connection.send_all(&[allow(), allow()]).await, Ok(Reply::Array(both)));
}
