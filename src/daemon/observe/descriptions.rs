//! What each metric means, for Prometheus.

use metrics::{describe_counter, describe_gauge, describe_histogram};

pub const DURATIONS: &str = "swlimitd_request_duration_seconds";
pub const WAITS: &str = "swlimitd_wait_duration_seconds";
pub const WAITING: &str = "swlimitd_waiting";

/// Describes all metrics but those of the configuration.
pub fn describe() {
    describe_counter!("swlimitd_requests_total", "Requests, by protocol or command, and result");
    describe_histogram!(DURATIONS, "Duration of requests in seconds, without those that may wait");
    describe_histogram!(WAITS, "Duration of requests that may wait for their turn, in seconds");
    describe_gauge!(WAITING, "Requests that wait for their turn now");
    describe_counter!("swlimitd_rule_requests_total", "Requests, by rule and outcome");
    describe_counter!("swlimitd_hits_total", "Hits of requests, by rule");
    describe_counter!("swlimitd_decisions_total", "Decisions of limits, by rule, decision and source");
    describe_counter!("swlimitd_near_limit_total", "Grants that left less than 20 % of the limit");
    describe_counter!("swlimitd_shadowed_total", "Denials of rules in shadow mode");
    describe_counter!(
        "swlimitd_unmatched_total",
        "Descriptors and requests without a limit: unknown domain, no rule, no policy"
    );
    describe_counter!(
        "swlimitd_server_errors_total",
        "Requests without a decision: the server was unavailable, or refused the command"
    );
    describe_counter!("swlimitd_rejected_total", "Connections and requests rejected before any protocol");
    describe_gauge!("swlimitd_control_plane_connected", "1 while the control plane that sends limits is connected");
    describe_gauge!("swlimitd_build_info", "1, with the version");
    describe_gauge!("swlimitd_server_lacks_module", "1 while the script decides because the module is not loaded");
    describe_gauge!("swlimitd_server_can_decide", "1 if the last check found that the server can decide all limits");
    describe_gauge!(
        "swlimitd_server_unavailable_seconds",
        "How long a server has been unavailable, by reason; absent unless it is"
    );
    describe_gauge!("swlimit_client_server_unavailable", "1 while decisions are made without the server");
    describe_gauge!("swlimit_client_server_evicts", "1 if the server evicts keys, and limits with them");
    describe_gauge!("swlimit_client_server_evicted_keys", "Keys that an evicting server has evicted since its start");
    describe_gauge!("swlimit_client_server_slow", "1 while replies of the server come after the timeout");
    describe_gauge!("swlimit_client_server_script", "1 if the server has not the module, and its script decides");
    describe_gauge!("swlimit_client_server_round_trip_seconds", "Duration of the last exchange with the server");
    describe_gauge!(
        "swlimit_client_leases_too_far",
        "Limits without leases, as a lease is shorter than two round trips"
    );
    describe_gauge!("swlimit_client_lacks", "1 if the server refuses this right");
    for (name, description) in [
        ("decisions", "Decisions of the client, by source"),
        ("commands", "Commands sent to the server"),
        ("failures", "Exchanges that the server did not answer in time, or could not decide; connections not made"),
        ("slow", "Replies that came late"),
        ("opened", "How often a server was found unavailable"),
        ("failovers", "How often sentinels named another primary"),
        ("changes", "Changes of keys that the server announced"),
        ("forgotten", "How often all cached denials were forgotten"),
        ("leased", "Units leased"),
        ("returned", "Units of leases given back unused"),
        ("written_off", "Units of leases that could not be given back"),
        ("in_doubt", "Requests for leases without a reply"),
        ("synchronized", "Synchronizations of mode eventual that succeeded"),
        ("unsynchronized", "Synchronizations of mode eventual that failed"),
        ("refused", "Units that the server refused to synchronize"),
        ("sent_again", "Units sent once more because nobody knows whether they were counted"),
        ("lost", "Units given up after two synchronizations in doubt"),
        ("holds_lost", "Holds that ended before they were released"),
        ("evicted", "Keys that the client forgot while they were of use, as there were more than max_keys"),
        ("taken_over", "Keys of the script that were given to the module"),
        ("unclaimed", "Units granted to requests that had been decided otherwise by then"),
    ] {
        describe_counter!(format!("swlimit_client_{name}_total"), description);
    }
}
