//! The module API's functions: those the module requires, and the macro that calls them.

use redis_module::raw;

/// Calls a required function of the module API, without a null check: [`missing`] checked it when the module was loaded.
///
/// Functions that are not listed as required do not compile here; test those for null where they are used.
macro_rules! api {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        let () = $crate::server::api::required::$function;
        match ::redis_module::raw::$function {
            Some(function) => function($($argument),*),
            None => ::std::hint::unreachable_unchecked(),
        }
    }};
}

/// Declares the required functions. The compiler reports one that is no longer called as dead code.
macro_rules! required {
    ($($(#[$attribute:meta])* $function:ident)*) => {
        #[allow(non_upper_case_globals)]
        pub(super) mod required {
            $($(#[$attribute])* pub const $function: () = ();)*
        }

        /// The first of the required functions that this server lacks.
        pub(super) fn missing() -> Option<&'static str> {
            // SAFETY: the table of functions is filled before anything else happens, and never changed again.
            let functions = unsafe { [$((stringify!($function), { raw::$function }.is_some())),*] };
            functions.into_iter().find_map(|(name, there)| (!there).then_some(name))
        }
    };
}

required! {
    RedisModule_ACLCheckCommandPermissions
    RedisModule_ACLCheckKeyPermissions
    RedisModule_AvoidReplicaTraffic
    RedisModule_BlockClient
    RedisModule_Call
    RedisModule_CallReplyArrayElement
    RedisModule_CallReplyInteger
    RedisModule_CallReplyLength
    RedisModule_CallReplyStringPtr
    RedisModule_CallReplyType
    RedisModule_CloseKey
    RedisModule_CreateCommand
    RedisModule_CreateDataType
    RedisModule_CreateString
    RedisModule_CreateTimer
    RedisModule_DefragAlloc
    RedisModule_DefragCursorGet
    RedisModule_DefragCursorSet
    RedisModule_DefragShouldStop
    RedisModule_DeleteKey
    RedisModule_DigestAddStringBuffer
    RedisModule_DigestEndSequence
    RedisModule_EmitAOF
    RedisModule_Free
    RedisModule_FreeCallReply
    RedisModule_FreeModuleUser
    RedisModule_FreeServerInfo
    RedisModule_FreeString
    RedisModule_GetAbsExpire
    RedisModule_GetBlockedClientHandle
    RedisModule_GetBlockedClientPrivateData
    RedisModule_GetCommand
    RedisModule_GetContextFlags
    RedisModule_GetCurrentUserName
    RedisModule_GetDbIdFromOptCtx
    RedisModule_GetDetachedThreadSafeContext
    RedisModule_GetKeyNameFromOptCtx
    RedisModule_GetModuleUserFromUserName
    RedisModule_GetSelectedDb
    RedisModule_GetServerInfo
    RedisModule_InfoAddFieldCString
    RedisModule_InfoAddFieldULongLong
    RedisModule_InfoAddSection
    RedisModule_IsIOError
    RedisModule_KeyType
    RedisModule_LoadConfigs
    RedisModule_LoadStringBuffer
    RedisModule_LogIOError
    RedisModule_Milliseconds
    RedisModule_ModuleTypeGetType
    RedisModule_ModuleTypeGetValue
    RedisModule_ModuleTypeSetValue
    RedisModule_NotifyKeyspaceEvent
    RedisModule_OpenKey
    #[cfg_attr(test, allow(dead_code))] // unit tests have no server that would allocate
    RedisModule_Realloc
    RedisModule_RegisterInfoFunc
    RedisModule_RegisterNumericConfig
    RedisModule_Replicate
    RedisModule_ReplicateVerbatim
    RedisModule_ReplyWithArray
    RedisModule_ReplyWithError
    RedisModule_ReplyWithLongLong
    RedisModule_ReplyWithMap
    RedisModule_ReplyWithStringBuffer
    RedisModule_RetainString
    RedisModule_SaveStringBuffer
    RedisModule_SelectDb
    RedisModule_ServerInfoGetFieldC
    RedisModule_ServerInfoGetFieldUnsigned
    RedisModule_SetAbsExpire
    RedisModule_SetCommandInfo
    RedisModule_SetDisconnectCallback
    RedisModule_SetModuleOptions
    RedisModule_SignalModifiedKey
    RedisModule_StopTimer
    RedisModule_StringPtrLen
    RedisModule_SubscribeToKeyspaceEvents
    RedisModule_SubscribeToServerEvent
    RedisModule_UnblockClient
    RedisModule_WrongArity
}
