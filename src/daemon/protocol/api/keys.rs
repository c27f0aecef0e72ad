//! Operations on keys that need no limit: refunds, blocks, holds of others, and what the server knows.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::Json;
use serde_json::{json, Value};
use swlimit_client::Request;
use swlimit_window::MAX_EXACT;

use super::decode::{
    read, BlockRequest, Body, HoldersRequest, Id, KeyRequest, RefundRequest, ReleaseRequest, RenewRequest,
    SettleRequest, TopRequest,
};
use super::encode;
use super::error::ErrorReply;
use crate::core::Error;
use crate::observe::refusals::refused;
use crate::protocol::object::Object;
use crate::service::Service;

/// The most keys of a settlement, beside the hold's own.
const MAX_USED: usize = 63;

/// The most keys of a reply about denied keys.
const MAX_TOP: usize = 10_000;

/// The most holders of a reply.
const MAX_HOLDERS: usize = 10_000;

type Reply = Result<Json<Value>, ErrorReply>;

/// Gives units back.
pub async fn refund(State(service): State<Arc<Service>>, body: Body<Object<RefundRequest>>) -> Reply {
    let Object(RefundRequest { key, cost, age }) = read(body)?;
    let key = key.name(&service.prefix())?;
    let request = Request::new(&key).cost(cost);
    let request = age.map_or(request, |age| request.age(age.into()));
    let refunded = service.client().refund(request).await.map_err(refused)?;
    Ok(Json(json!({ "refunded": refunded })))
}

pub async fn block(State(service): State<Arc<Service>>, body: Body<Object<BlockRequest>>) -> Reply {
    let Object(BlockRequest { key, duration, unless_blocked }) = read(body)?;
    let (client, key, duration) = (service.client(), key.name(&service.prefix())?, Duration::from(duration));
    let until = match unless_blocked {
        true => client.block_unless_blocked(&key, duration).await,
        false => client.block(&key, duration).await,
    };
    Ok(Json(json!({ "blocked_until": encode::unix(until.map_err(refused)?) })))
}

pub async fn unblock(State(service): State<Arc<Service>>, body: Body<Object<KeyRequest>>) -> Reply {
    let Object(KeyRequest { key }) = read(body)?;
    let unblocked = service.client().unblock(&key.name(&service.prefix())?).await.map_err(refused)?;
    Ok(Json(json!({ "unblocked": unblocked })))
}

/// Ends holds, whichever client has them.
pub async fn release(State(service): State<Arc<Service>>, body: Body<Object<ReleaseRequest>>) -> Reply {
    let Object(ReleaseRequest { key, id }) = read(body)?;
    let key = key.name(&service.prefix())?;
    let released = service.client().release(&key, &id.bytes()?).await.map_err(refused)?;
    Ok(Json(json!({ "released": released })))
}

/// Renews holds: whether each is live.
pub async fn renew(State(service): State<Arc<Service>>, body: Body<Object<RenewRequest>>) -> Reply {
    let Object(RenewRequest { key, ttl, id }) = read(body)?;
    let key = key.name(&service.prefix())?;
    let renewed = service.client().renew(&key, ttl.into(), &id.bytes()?).await.map_err(refused)?;
    Ok(Json(json!({ "renewed": renewed })))
}

/// Corrects what a hold has reserved, once.
pub async fn settle(State(service): State<Arc<Service>>, body: Body<Object<SettleRequest>>) -> Reply {
    let (Object(SettleRequest { key, id: Id(id), used }), prefix) = (read(body)?, service.prefix());
    let key = key.name(&prefix)?;
    let used = used.iter().map(|Object(used)| Ok((used.key.name(&prefix)?, used.units)));
    let used = used.collect::<Result<Vec<_>, ErrorReply>>()?;
    if used.len() > MAX_USED {
        return Err(ErrorReply::invalid(format!("used names at most {MAX_USED} keys")));
    }
    let distinct: HashSet<&str> = used.iter().map(|(key, _)| key.as_str()).chain([key.as_str()]).collect();
    if distinct.len() <= used.len() {
        return Err(ErrorReply::invalid("duplicate key"));
    }
    if used.iter().any(|(_, units)| *units > MAX_EXACT) {
        return Err(ErrorReply::invalid(format!("units are at most {MAX_EXACT}")));
    }
    let used: Vec<_> = used.iter().map(|(key, units)| (key.as_bytes(), *units)).collect();
    let changes = service.client().settle(&key, &id, &used).await.map_err(unsettled)?;
    Ok(Json(json!({ "settled": changes.is_some(), "changes": changes.unwrap_or_default() })))
}

/// Why nothing was settled. What the hold has reserved, only the server knows.
fn unsettled(error: Error) -> ErrorReply {
    match &error {
        Error::Refused(text) if text.starts_with("ERR keys are not those") => {
            ErrorReply::invalid("used must name the keys that were reserved, in their order")
        }
        // The server says so of units that are no hold's.
        Error::Refused(text) if text.starts_with("ERR syntax error") => {
            ErrorReply::invalid("the units of a hold must be 0: it ends as a whole")
        }
        _ => refused(error).into(),
    }
}

/// Who holds units of a key, by its full name.
pub async fn holders(
    State(service): State<Arc<Service>>,
    query: Result<Query<HoldersRequest>, QueryRejection>,
) -> Reply {
    let Query(HoldersRequest { key, count }) = query?;
    if !(1..=MAX_HOLDERS).contains(&count) {
        return Err(ErrorReply::invalid(format!("count is 1 to {MAX_HOLDERS}")));
    }
    let holders = service.client().holders(&key.name("")?, count).await.map_err(refused)?;
    let holders = holders.iter().map(|holder| {
        json!({
            "id": Id::spelled(&holder.id),
            "units": holder.units,
            "held_for": encode::ms(holder.held_for),
            "expires_after": encode::ms(holder.expires_after),
            "token": holder.token,
        })
    });
    Ok(Json(holders.collect()))
}

/// What the server holds of a key, by its full name.
pub async fn info(State(service): State<Arc<Service>>, query: Result<Query<KeyRequest>, QueryRejection>) -> Reply {
    let Query(KeyRequest { key }) = query?;
    match service.client().info(&key.name("")?).await.map_err(refused)? {
        Some(held) => Ok(Json(encode::held(&held))),
        None => Err(ErrorReply::new(StatusCode::NOT_FOUND, "no such key")),
    }
}

/// The keys with the most denied requests.
pub async fn top(State(service): State<Arc<Service>>, query: Result<Query<TopRequest>, QueryRejection>) -> Reply {
    let Query(TopRequest { count }) = query?;
    if !(1..=MAX_TOP).contains(&count) {
        return Err(ErrorReply::invalid(format!("count is 1 to {MAX_TOP}")));
    }
    let all = service.client().top(count).await.map_err(refused)?;
    Ok(Json(all.iter().map(encode::denied).collect()))
}
