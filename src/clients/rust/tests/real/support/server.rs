//! A server of its own for each test.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use redis::FromRedisValue;
use tempfile::TempDir;

use super::LONG;

/// A server process on a loopback port, in a folder of its own. Dropped, it is ended.
pub struct Server {
    pub port: u16,
    pub folder: TempDir,
    words: Vec<String>,
    env: Vec<(String, String)>,
    process: Option<Child>,
}

/// How a server is started.
pub struct Starting {
    words: Vec<String>,
    env: Vec<(String, String)>,
    is_loaded: bool,
}

impl Starting {
    /// A directive of its configuration.
    pub fn with(mut self, directive: &str, value: impl ToString) -> Self {
        self.words.extend([format!("--{directive}"), value.to_string()]);
        self
    }

    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.env.push((name.into(), value.to_string()));
        self
    }

    /// Without the module, which can be loaded later.
    pub fn bare(self) -> Self {
        Self { is_loaded: false, ..self.with("enable-module-command", "yes") }
    }

    pub fn start(self) -> Server {
        self.try_start().unwrap_or_else(|log| panic!("the server does not start:\n{log}"))
    }

    /// The server, or what it said when it ended at once.
    pub fn try_start(self) -> Result<Server, String> {
        let mut server = self.server();
        server.try_start()?;
        Ok(server)
    }

    fn server(self) -> Server {
        let module = module();
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let mut words: Vec<String> =
            ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""].map(String::from).into();
        words.extend(["--enable-debug-command", "yes", "--logfile", "server.log"].map(String::from));
        words.extend(self.words);
        if self.is_loaded {
            words.extend(["--loadmodule".into(), module.display().to_string()]);
        }
        Server { port, folder, words, env: self.env, process: None }
    }
}

impl Server {
    pub fn new() -> Self {
        Self::builder().start()
    }

    /// At a port that was another one's.
    pub fn at(port: u16) -> Self {
        let mut server = Self::builder().server();
        server.port = port;
        server.words.extend(["--port".into(), port.to_string()]);
        server.start();
        server
    }

    pub fn builder() -> Starting {
        Starting { words: Vec::new(), env: Vec::new(), is_loaded: !by_script() }
    }

    /// A sentinel of this master's, which it calls `mymaster`.
    pub fn sentinel(master: &Self) -> Self {
        Self::sentinel_with(master, "")
    }

    /// The same with more lines of configuration.
    pub fn sentinel_with(master: &Self, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let lines = [
            format!("port {port}\nbind 127.0.0.1\nlogfile server.log"),
            format!("sentinel monitor mymaster 127.0.0.1 {} 1", master.port),
            format!("sentinel down-after-milliseconds mymaster 300\nsentinel failover-timeout mymaster 3000\n{more}\n"),
        ];
        std::fs::write(folder.path().join("sentinel.conf"), lines.join("\n")).unwrap();
        let words = vec!["sentinel.conf".into(), "--sentinel".into()];
        let mut server = Self { port, folder, words, env: Vec::new(), process: None };
        server.start();
        server
    }

    /// Start the process again, and wait until it answers.
    pub fn start(&mut self) {
        self.try_start().unwrap_or_else(|log| panic!("the server does not start:\n{log}"));
    }

    /// Start the process with further words, and do not wait for it.
    pub fn begin(&mut self, more: &[&str]) {
        let output = File::options().create(true).append(true).open(self.log()).unwrap();
        let mut command = Command::new(program());
        command.args(&self.words).args(more).envs(self.env.iter().cloned()).current_dir(&self.folder);
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        self.process = Some(command.spawn().unwrap());
    }

    /// Load the module, which it was started without.
    pub fn load(&self) {
        self.say::<()>(&format!("MODULE LOAD {}", Self::module()));
    }

    /// Where the module is.
    pub fn module() -> String {
        module().display().to_string()
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    fn try_start(&mut self) -> Result<(), String> {
        self.begin(&[]);
        let deadline = Instant::now() + LONG;
        let ping = |mut connection| match redis::cmd("PING").exec(&mut connection) {
            // It is there, and asks for a password.
            Err(error) if error.code() == Some("NOAUTH") => Ok(()),
            answer => answer,
        };
        while self.connect().and_then(ping).is_err() {
            let has_ended = self.process.as_mut().is_some_and(|process| process.try_wait().unwrap().is_some());
            if has_ended || Instant::now() > deadline {
                return Err(std::fs::read_to_string(self.log()).unwrap());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Let the process stand still, or go on.
    pub fn pause(&self, is_paused: bool) {
        let signal = if is_paused { "-STOP" } else { "-CONT" };
        let process = self.process.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().unwrap().success());
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    fn connect(&self) -> redis::RedisResult<redis::Connection> {
        let connection = redis::Client::open(self.url())?.get_connection_with_timeout(LONG)?;
        connection.set_read_timeout(Some(LONG))?;
        Ok(connection)
    }

    /// Say something to the server as somebody else than the client would, word by word; its answer.
    pub fn say<T: FromRedisValue>(&self, words: &str) -> T {
        self.say_words(&words.split(' ').collect::<Vec<_>>())
    }

    pub fn say_words<T: FromRedisValue, W: AsRef<[u8]> + std::fmt::Debug>(&self, words: &[W]) -> T {
        let said = self.connect().and_then(|mut connection| command(words).query(&mut connection));
        said.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// A number that `INFO` tells.
    pub fn info(&self, section: &str, field: &str) -> u64 {
        let info: String = self.say(&format!("INFO {section}"));
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
        line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {field} in {info}"))
    }

    /// How many commands of the module have come so far.
    pub fn commands(&self) -> u64 {
        self.calls("")
    }

    /// How many of those whose names begin so, after `SWLIMIT.`.
    pub fn calls(&self, name: &str) -> u64 {
        let info: String = self.say("INFO commandstats");
        let begin = if by_script() { "cmdstat_evalsha".into() } else { format!("cmdstat_swlimit.{name}") };
        let ours = info.lines().filter(|line| line.starts_with(&begin));
        ours.map(|line| line.split(['=', ',']).nth(1).unwrap().parse::<u64>().unwrap()).sum()
    }

    /// How many units a key holds.
    pub fn held(&self, key: &str) -> u64 {
        let info: redis::Value = self.say(&format!("SWLIMIT.INFO {key}"));
        let fields: Vec<(String, redis::Value)> = redis::from_redis_value(info).unwrap();
        let (_, total) = fields.into_iter().find(|(name, _)| name == "total").unwrap();
        redis::from_redis_value(total).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether the servers have no module, so that the script decides.
pub fn by_script() -> bool {
    std::env::var_os("SWLIMIT_BY_SCRIPT").is_some()
}

/// A command in the module's words, as servers here understand it.
pub fn command<W: AsRef<[u8]>>(words: &[W]) -> redis::Cmd {
    let words: Vec<&[u8]> = words.iter().map(AsRef::as_ref).collect();
    let words = if by_script() { scripted(&words) } else { words };
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word);
    }
    command
}

/// A command of the module as a call of the script; any other as it is.
fn scripted<'a>(words: &[&'a [u8]]) -> Vec<&'a [u8]> {
    const SCRIPT: &[u8] = include_bytes!("../../../../../server/script/swlimit.lua");
    let Some(name) = words[0].strip_prefix(b"SWLIMIT.") else { return words.to_vec() };
    let keys = if name == b"MALLOW" { words[1] } else { b"1" };
    let first = if name == b"MALLOW" { 2 } else { 1 };
    let end = first + String::from_utf8_lossy(keys).parse::<usize>().unwrap();
    [&[b"EVAL", SCRIPT, keys], &words[first..end], &[name], &words[end..]].concat()
}

fn program() -> PathBuf {
    let name = PathBuf::from(std::env::var_os("SWLIMIT_SERVER").unwrap_or_else(|| "redis-server".into()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(&name)).find(|file| file.is_file());
    found.unwrap_or_else(|| lacking(&format!("{} on the PATH", name.display())))
}

fn module() -> PathBuf {
    let built = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../../target/debug/libswlimit.so").into();
    let module = PathBuf::from(std::env::var_os("SWLIMIT_MODULE").unwrap_or_else(built));
    if module.is_file() {
        module
    } else {
        lacking(&format!("the module, {}", module.display()))
    }
}

/// End the tests, with success but in CI, because there is nothing to test with. Said past what captures a test's
/// output.
fn lacking(what: &str) -> ! {
    let _ = writeln!(std::io::stderr(), "LACKING {what}: nothing is tested on real servers");
    std::process::exit(i32::from(std::env::var("CI").is_ok_and(|ci| ci == "true")));
}

/// A loopback port that nobody listens on, and that is given once: one below those that the system gives to clients, of
/// which one could take it before the server does.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let is_free = |port: &u16| GIVEN.lock().unwrap().insert(*port) && TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(|| fastrand::u16(22_000..32_000)).find(is_free).unwrap()
}
