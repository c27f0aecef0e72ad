"""What envoyproxy/ratelimit's own tests ask, and what it answers, as tables. Their names are those of its tests.

A descriptor is `key=value key=value`. An answer is a code for each status, and what its limit says: `OK 49/50 SECOND`
is granted, with 49 of 50 left in a second. `OK unlimited` has no limit, `OK` matches none.
"""

FILES = [
    (["test/config/basic_config.yaml"], True),
    (["test/config/bad_limit_unit.yaml"], False),
    (["test/config/bad_yaml.yaml"], False),
    (["test/config/basic_config.yaml", "test/config/duplicate_domain.yaml"], False),
    (["test/config/duplicate_key.yaml"], False),
    (["test/config/empty_domain.yaml"], False),
    (["test/config/empty_key.yaml"], False),
    (["test/config/merge_domain_key1.yaml", "test/config/merge_domain_key2.yaml"], True),
    (["test/config/merge_domain_key1.yaml", "test/config/merge_domain_key1.yaml"], False),
    (["test/config/metadata.yaml"], True),
    (["test/config/misspelled_key.yaml"], False),
    (["test/config/misspelled_key2.yaml"], False),
    (["test/config/non_map_list.yaml"], False),
    (["test/config/non_string_key.yaml"], False),
    (["test/config/replaces_empty.yaml"], False),
    (["test/config/replaces_self.yaml"], False),
    (["test/config/shadowmode_config.yaml"], True),
    (["test/config/share_threshold.yaml"], True),
    (["test/config/unlimited_with_unit.yaml"], False),
    (["test/config/wildcard.yaml"], True),
    (["test/integration/runtime/current/ratelimit/config/another.yaml"], True),
    (["test/integration/runtime/current/ratelimit/config/basic.yaml"], True),
    (["test/integration/runtime/current/ratelimit/config/share_threshold.yaml"], True),
    (["test/integration/runtime/current/ratelimit/reload.yaml"], True),
    (["examples/ratelimit/config/config.yaml"], True),
    (["examples/ratelimit/config/example.yaml"], True),
]
"""Files that are read together, and whether they load."""

NONE, NO_DOMAIN = "none", "no such domain"

RULES = [
    ("TestBasicConfig", ["test/config/basic_config.yaml"], "test-domain", [
        ("key1=something", NONE),
        ("key1=value1", NONE),
        ("key2=value2 subkey=subvalue", NONE),
        ("key5=value5 subkey5=subvalue", NONE),
        ("key1=value1 subkey1=something", "5 SECOND test-domain.key1_value1.subkey1"),
        ("key1=value1 subkey1=subvalue1", "10 SECOND test-domain.key1_value1.subkey1_subvalue1"),
        ("key2=something", "20 MINUTE test-domain.key2"),
        ("key2=value2", "30 MINUTE test-domain.key2_value2"),
        ("key2=value3", NONE),
        ("key3=foo", "1 HOUR test-domain.key3"),
        ("key4=foo", "1 DAY key4_rate_limit test-domain.key4"),
        ("key6=foo", "unlimited test-domain.key6"),
        ("key7=unspecified_value", "70 MINUTE test-domain.key7_unspecified_value"),
        ("key7=another_value", "70 MINUTE test-domain.key7_another_value"),
    ]),
    ("TestBasicConfig", ["test/config/basic_config.yaml"], "foo_domain", [("a=b", NO_DOMAIN)]),
    ("TestDomainMerge", ["test/config/merge_domain_key1.yaml", "test/config/merge_domain_key2.yaml"], "test-domain", [
        ("key1=value1", "10 MINUTE test-domain.key1_value1"),
        ("key2=value2", "20 MINUTE test-domain.key2_value2"),
    ]),
    ("TestShadowModeConfig", ["test/config/shadowmode_config.yaml"], "test-domain", [
        ("key1=value1 subkey1=something", "5 SECOND test-domain.key1_value1.subkey1"),
        ("key1=value1 subkey1=subvalue1", "10 SECOND test-domain.key1_value1.subkey1_subvalue1"),
        ("key2=something", "20 MINUTE test-domain.key2"),
        ("key2=value2", "30 MINUTE test-domain.key2_value2"),
    ]),
    ("TestWildcardConfig", ["test/config/wildcard.yaml"], "test-domain", [
        ("noVal=foo1", "20 MINUTE test-domain.noVal"),
        ("noVal=foo2", "20 MINUTE test-domain.noVal"),
        ("wild=foo1", "20 MINUTE test-domain.wild_foo*"),
        ("wild=foo2", "20 MINUTE test-domain.wild_foo*"),
        ("nestedWild=val1 wild=goo2", "20 MINUTE test-domain.nestedWild_val1.wild_goo*"),
        ("wild=bar", NONE),
        ("noWild=foo1", NONE),
        ("midWild=barab", "20 MINUTE test-domain.midWild_bar*b"),
        ("midWild=bar123b", "20 MINUTE test-domain.midWild_bar*b"),
        ("midWild=barb", "20 MINUTE test-domain.midWild_bar*b"),
        ("midWild=bara", NONE),
        ("midWild=xbarb", NONE),
        ("multiWild=foo123bar456baz", "10 MINUTE test-domain.multiWild_foo*bar*baz"),
        ("multiWild=foobarbaz", "10 MINUTE test-domain.multiWild_foo*bar*baz"),
        ("multiWild=foo123baz", NONE),
        ("multiWild=bar456baz", NONE),
    ]),
    ("TestShareThreshold", ["test/config/share_threshold.yaml"], "test-domain", [
        ("files=files/a.pdf", "100 MINUTE test-domain.files_files/*"),
        ("files=files/b.csv", "100 MINUTE test-domain.files_files/*"),
        ("files=files/c.txt", "100 MINUTE test-domain.files_files/*"),
        ("route=api/v1 method=GET", "60 MINUTE test-domain.route_api/*.method"),
        ("service=svc/user endpoint=get", "80 MINUTE test-domain.service_svc/*.endpoint_get"),
        ("nested=parent files=nested/file1.txt", "200 MINUTE test-domain.nested_parent.files_nested/*"),
        ("files=top/file1.txt files=nested/file1.txt", "300 MINUTE test-domain.files_top/*.files_nested/*"),
        ("path=path/foo file=file/doc1 type=pdf", "120 MINUTE test-domain.path_path/*.file_file/*.type"),
        ("user=user/alice resource=res/file1 action=read", "150 MINUTE test-domain.user_user/*.resource_res/*.action"),
        ("file=test1", "50 MINUTE test-domain.file_test1"),
        ("file=test2", "100 MINUTE test-domain.file_test*"),
        ("file=test23", "100 MINUTE test-domain.file_test*"),
        ("file=test123", "100 MINUTE test-domain.file_test*"),
        ("midpath=/api/v1", "100 MINUTE test-domain.midpath_/api*v1"),
        ("midpath=/api-beta-v1", "100 MINUTE test-domain.midpath_/api*v1"),
        ("midpath=/apiXYZv1", "100 MINUTE test-domain.midpath_/api*v1"),
        ("midpath=/api/v2", NONE),
        ("multiroute=svcAepBrpc", "50 MINUTE test-domain.multiroute_svc*ep*rpc"),
        ("multiroute=svcXXXepYYYrpc", "50 MINUTE test-domain.multiroute_svc*ep*rpc"),
        ("multiroute=svceprpc", "50 MINUTE test-domain.multiroute_svc*ep*rpc"),
        ("multiroute=svcABCrpc", NONE),
        ("midroute=/api/v2", "80 MINUTE test-domain.midroute_/api*v2"),
        ("midroute=/api-beta-v2", "80 MINUTE test-domain.midroute_/api*v2"),
        ("tenant=t1prod resource=resAv2", "60 MINUTE test-domain.tenant_t*prod.resource_res*v2"),
        ("tenant=t99prod resource=resBBBv2", "60 MINUTE test-domain.tenant_t*prod.resource_res*v2"),
    ]),
    ("TestMetadata", ["test/config/metadata.yaml"], "test-domain", [
        ("key1=value1 subkey1=something", "5 SECOND test-domain.key1_value1.subkey1 name:service_1"),
        ("key2=something", "20 MINUTE test-domain.key2 service_with_quota:{name:service_2}"),
    ]),
]
"""Files, and what is asked of them: the limit that is found, its name, and that of its metrics."""


def rule(number=60, unit="minute", **keys):
    return keys | {"rate_limit": {"requests_per_unit": number, "unit": unit}}


def path(*levels):
    """Descriptors below each other."""
    level, *below = levels
    return level | ({"descriptors": [path(*below)]} if below else {})


def routed(**leaf):
    return path({"key": "route", "value_to_metric": True}, {"key": "http_method", "value_to_metric": True},
                rule(key="subject_id", **leaf))


def metered(top, below):
    return path(rule(100, key="key-1", detailed_metric=top), rule(5, key="key-2", detailed_metric=below))


KEY_3 = {"key": "key_3", "detailed_metric": True}
ASKED_KEY_3 = KEY_3 | {"value": "requested-key3-value"}
REALISTIC = [
    rule(500, key="key_1", detailed_metric=True),
    rule(500, key="key_1", value="some-value-for-key-1"),
    rule(5000, key="key_2", detailed_metric=True, descriptors=[KEY_3, rule(5, **ASKED_KEY_3)]),
    rule(50000, key="key_2", value="specific-id", detailed_metric=True,
         descriptors=[KEY_3, rule(100, **ASKED_KEY_3)]),
]
METHODS = [{"key": "route", "value_to_metric": True, "descriptors": [
    {"key": "http_method", "value": method, "value_to_metric": True, "descriptors": [rule(number, key="subject_id")]}
    for method, number in (("GET", 60), ("POST", 30))]}]
ACTIONS = path({"key": "user", "value_to_metric": True}, {"key": "action", "value": "read*", "value_to_metric": True},
               rule(100, key="resource"))

INLINE_RULES = [
    ("TestDetailedMetric", [metered(True, False)], [("key-1=value-1", "100 MINUTE d.key-1_value-1")]),
    ("TestDetailedMetric", [metered(False, False)], [
        ("key-1=value-1", "100 MINUTE d.key-1"), ("key-1=value-1 key-2=value-2", "5 MINUTE d.key-1.key-2")]),
    ("TestDetailedMetric", [metered(True, True)], [
        ("key-1=value-1 key-2=value-2", "5 MINUTE d.key-1_value-1.key-2_value-2")]),
    ("TestDetailedMetric", REALISTIC, [
        ("key_1=value-for-key-1", "500 MINUTE d.key_1_value-for-key-1"),
        ("key_2=key-2-value", "5000 MINUTE d.key_2_key-2-value"),
        ("key_2=key-2-value key_3=requested-key3-value",
         "5 MINUTE d.key_2_key-2-value.key_3_requested-key3-value")]),
    ("TestValueToMetric_UsesRuntimeValuesInStats, …_WithEmptyValue", [routed()], [
        ("route=draw http_method=GET subject_id=123", "60 MINUTE d.route_draw.http_method_GET.subject_id"),
        ("route= http_method=GET subject_id=123", "60 MINUTE d.route.http_method_GET.subject_id"),
        ("route=draw http_method= subject_id=123", "60 MINUTE d.route_draw.http_method.subject_id"),
        ("route= http_method= subject_id=123", "60 MINUTE d.route.http_method.subject_id")]),
    ("TestValueToMetric_DefaultKeyIncludesValueAtThatLevel",
     [path({"key": "k1", "value_to_metric": True}, rule(1, "second", key="k2"))],
     [("k1=A k2=foo", "1 SECOND d.k1_A.k2")]),
    ("TestValueToMetric_MidLevelOnly",
     [path({"key": "k1"}, {"key": "k2", "value_to_metric": True}, rule(1, "second", key="k3"))],
     [("k1=X k2=Y k3=Z", "1 SECOND d.k1.k2_Y.k3")]),
    ("TestValueToMetric_NoFlag_Unchanged", [path({"key": "k1"}, rule(1, "second", key="k2"))],
     [("k1=X k2=Y", "1 SECOND d.k1.k2")]),
    ("TestValueToMetric_DoesNotOverrideDetailedMetric", [routed(detailed_metric=True)],
     [("route=draw http_method=GET subject_id=123", "60 MINUTE d.route_draw.http_method_GET.subject_id_123")]),
    ("TestValueToMetric_WithConfiguredValues", METHODS, [
        ("route=api http_method=GET subject_id=user123", "60 MINUTE d.route_api.http_method_GET.subject_id"),
        ("route=api http_method=POST subject_id=user456", "30 MINUTE d.route_api.http_method_POST.subject_id")]),
    ("TestValueToMetric_WithWildcard", [ACTIONS], [
        ("user=alice action=readfile resource=documents", "100 MINUTE d.user_alice.action_readfile.resource"),
        ("user=bob action=readdata resource=database", "100 MINUTE d.user_bob.action_readdata.resource")]),
    ("TestWildcardStatsBehavior", [rule(20, key="wild", value="foo*")], [("wild=foo1", "20 MINUTE d.wild_foo*")]),
    ("TestWildcardStatsBehavior", [rule(20, key="wild", value="foo*", value_to_metric=True)],
     [("wild=foo1", "20 MINUTE d.wild_foo1")]),
    ("TestWildcardStatsBehavior", [rule(20, key="wild", value="foo*", share_threshold=True)],
     [("wild=foo1", "20 MINUTE d.wild_foo*")]),
    ("TestWildcardStatsBehavior", [rule(20, key="wild", value="foo*", share_threshold=True, value_to_metric=True)],
     [("wild=foo1", "20 MINUTE d.wild_foo*")]),
    ("TestWildcardStatsBehavior",
     [path({"key": "wild", "value": "foo*"}, {"key": "other", "value_to_metric": True}, rule(20, key="limit"))],
     [("wild=foo1 other=bar limit=X", "20 MINUTE d.wild_foo*.other_bar.limit")]),
    ("TestWildcardStatsBehavior", [rule(20, key="wild", value="foo*bar*")], [
        ("wild=foo123bar456", "20 MINUTE d.wild_foo*bar*"), ("wild=fooXbarY", "20 MINUTE d.wild_foo*bar*")]),
    ("TestWildcardStatsBehavior", [rule(20, key="wild", value="foo*bar*", value_to_metric=True)],
     [("wild=foo123bar456", "20 MINUTE d.wild_foo123bar456")]),
]
"""The same for limits of the domain `d` that the tests make themselves."""

OVERRIDES = [
    ("key1=value1 subkey1=something", (10, "DAY"), "10 DAY test-domain.key1_value1.subkey1_something"),
    ("key1=value1 subkey1=something", (42, "HOUR"), "42 HOUR test-domain.key1_value1.subkey1_something"),
    ("key1=value1 subkey1=something_else", (42, "HOUR"), "42 HOUR test-domain.key1_value1.subkey1_something_else"),
]
"""TestConfigLimitOverride: limits that requests bring along."""

OVER, OK = "OVER_LIMIT", "OK"

MODES = [
    ("TestServiceGlobalShadowMode", {"SHADOW_MODE": "true"}, ["regular", "nothing"], ["regular"], [OK, OVER, OK]),
    ("TestRuleShadowMode", {}, ["shadow", "shadow2"], ["shadow", "shadow2"], [OK, OK, OK]),
    ("TestMixedRuleShadowMode", {}, ["shadow", "regular"], ["shadow", "regular"], [OVER, OK, OVER]),
    ("TestServiceGlobalQuotaMode", {"QUOTA_MODE": "true"}, ["regular", "other"], ["regular", "other"],
     [OVER, OVER, OVER]),
    ("TestServicePerDescriptorQuotaMode", {}, ["regular", "quota"], ["regular"], [OVER, OVER, OK]),
    ("TestServiceMixedPerDescriptorModes", {}, ["regular", "quota"], ["quota"], [OVER, OK, OVER]),
    ("TestServiceMixedPerDescriptorModesUnderLimit", {}, ["regular", "quota"], [], [OK, OK, OK]),
    ("TestServiceQuotaModeOnlyAllOverTheLimit", {}, ["quota", "quota2"], ["quota", "quota2"], [OVER, OVER, OVER]),
    ("TestServiceQuotaModeOnlySomeOverTheLimit", {}, ["quota", "quota2"], ["quota"], [OK, OVER, OK]),
    ("TestServiceQuotaModeWithShadowMode", {"SHADOW_MODE": "true"}, ["quota", "quota2"], ["quota", "quota2"],
     [OK, OVER, OVER]),
    ("TestServiceMixedModeWithShadowMode", {"SHADOW_MODE": "true"}, ["regular", "quota"], ["regular", "quota"],
     [OK, OVER, OVER]),
]
"""Variables, descriptors, which of them are used up, and the codes: of all, and of each."""

MODE_RULES = [rule(5, "hour", key="regular"), rule(5, "hour", key="other"),
              *(rule(3, "hour", key=key, quota_mode=True) for key in ("quota", "quota2")),
              *(rule(3, "hour", key=key, shadow_mode=True) for key in ("shadow", "shadow2"))]

METADATA = {"QUOTA_MODE": "true", "RESPONSE_DYNAMIC_METADATA": "true"}
METADATA_RULES = [rule(10, "hour", key=key, metadata=metadata) for key, metadata in {
    "first": {"name": "service_1"}, "second": {"name": "service_2"}, "third": {"some_other_name": "service_2"},
}.items()]
METADATA_CASES = [
    ("TestMetadataReturnedForPassedDescriptors", ["first", "second"], ["second"], {"name": "service_1"}),
    ("TestMetadataReturnedForAllPassedDescriptors", ["first", "third"], [],
     {"name": "service_1", "some_other_name": "service_2"}),
    ("TestOverlappingMetadataReturnsTheFirstValue", ["first", "second"], [], {"name": "service_1"}),
]
"""Descriptors, which of them are used up, and the metadata of the answer."""

COUNTED = [
    ("TestRedis", 10, 4, 1, "OK 5/10 HOUR", (1, 0, 0, 1)),
    ("TestRedis", 10, 10, 1, "OVER_LIMIT 0/10 HOUR", (1, 1, 0, 0)),
    ("TestNearLimit", 15, 10, 1, "OK 4/15 HOUR", (1, 0, 0, 1)),
    ("TestNearLimit", 15, 12, 1, "OK 2/15 HOUR", (1, 0, 1, 1)),
    ("TestNearLimit", 15, 15, 1, "OVER_LIMIT 0/15 HOUR", (1, 1, 0, 0)),
    ("TestNearLimit", 20, 2, 3, "OK 15/20 HOUR", (3, 0, 0, 3)),
    ("TestNearLimit", 8, 5, 2, "OK 1/8 HOUR", (2, 0, 1, 2)),
    ("TestNearLimit", 20, 16, 3, "OK 1/20 HOUR", (3, 0, 3, 3)),
    ("TestNearLimit", 20, 19, 3, "OVER_LIMIT 0/20 HOUR", (3, 2, 1, 0)),
    ("TestNearLimit", 20, 15, 7, "OVER_LIMIT 0/20 HOUR", (7, 2, 4, 0)),
    ("TestNearLimit", 10, 10, 3, "OVER_LIMIT 0/10 HOUR", (3, 3, 0, 0)),
]
"""A limit, hits before, hits asked, the answer, and what is counted: all hits, over, near and within the limit."""

STEPS = [
    ((1, 1), "OK [OK 4/15 HOUR; OK 3/14 HOUR]"),
    ((2, 2), "OK [OK 2/15 HOUR; OK 1/14 HOUR]"),
    ((2, 2), "OVER_LIMIT [OK 2/15 HOUR; OVER_LIMIT 0/14 HOUR]"),
]
"""TestOverLimitWithStopCacheKeyIncrementWhenOverlimitConfig: after 10 hits of each, hits of two descriptors."""


def two(foo, **bar):
    return [f"foo={foo} {key}={value}" for key, value in bar.items()]


def four(foo, bar, destination):
    return [*two(foo, bar=bar), f"source_cluster=proxy destination_cluster={destination}"]


def five(foo, bar, destination):
    return [*four(foo, bar, destination), "category=account"]


SCRIPTS = [
    ("simple-get.sh", [(two("test", baz="shady"), OK)]),
    ("trigger-ratelimit.sh", [(two("pelle", baz="not-so-shady"), code) for code in (OK, OK, OK, OVER, OVER)]),
    ("trigger-shadow-mode-key.sh", [(two("pelle", baz="shady"), OK)] * 6),
    ("value-included-in-stats-key-when-unspecified.sh",
     [(["unspec=unspecified_value"], code) for code in (OK, OK, OVER)]),
    ("quota.sh", [(["service=service_1", "service=service_2"], code) for code in (OK, OK, OVER)]),
    ("replaces.sh", [
        (two("bkthomps", bar="banned"), OVER),
        (four("bkthomps", "banned", "mock"), OVER),
        *((four("bkthomps", "banned", "override"), code) for code in (OK, OK, OVER)),
        *((four("my_foo", "bkthomps", "bkthomps"), code) for code in (OK, OK, OVER)),
        *((four("my_foo", "bkthomps", "not_bkthomps"), code) for code in (OK, OVER, OVER)),
        *((five("my_foo", "bkthomps", "fake"), code) for code in (OK, OK, OK, OK, OVER)),
        *((two("foo_2", bar="bkthomps"), code) for code in (OK, OVER)),
        *((four("foo_3", "bar_3", "fake"), code) for code in (OK, OK, OVER)),
        (five("my_foo", "bkthomps", "fake"), OVER),
    ]),
]
"""The scripts of its integration tests: what its Envoy sends for each request to examples/ratelimit/config."""

TOKEN_SCRIPTS = [
    ("token-quota.sh", ["service_2"], [OK, OK, OK, OVER]),
    ("multiservice-tokenquota.sh", ["service_1", "service_2"], [OK, OK, OK, OK, OK, OVER]),
]
"""Services that are looked at, and the code of each look. The first service that has quota is counted afterwards."""


def resource(name, domain, *descriptors):
    return {"name": name, "domain": domain, "descriptors": list(descriptors)}


def policy(number, unit="MINUTE", **keys):
    return keys | {"rate_limit": {"requests_per_unit": number, "unit": unit}}


RESOURCES = [
    ("testInitialXdsConfig", [resource("foo", "foo", policy(3, key="k1", value="v1"))], ["foo.k1_v1 3 1m"]),
    ("testNewXdsConfigUpdate", [resource("foo", "foo", policy(5, key="k2", value="v2"))], ["foo.k2_v2 5 1m"]),
    ("testMultiDomainXdsConfigUpdate",
     [resource("foo", "foo", policy(10, key="k1", value="v1")),
      resource("bar", "bar", policy(100, key="k1", value="v1"))],
     ["bar.k1_v1 100 1m", "foo.k1_v1 10 1m"]),
    ("testDeeperLimitsXdsConfigUpdate",
     [resource("foo", "foo",
               policy(10, key="k1", value="v1",
                      descriptors=[{"key": "k2"}, policy(15, "HOUR", key="k2", value="v2")]),
               {"key": "j1", "value": "v2", "descriptors": [
                   {"key": "j2"},
                   policy(15, "DAY", key="j2", value="v2", shadow_mode=True, quota_mode=True)]}),
      resource("bar", "bar", policy(100, key="k1", value="v1"))],
     ["bar.k1_v1 100 1m", "foo.j1_v2.j2_v2 15 1d", "foo.k1_v1 10 1m", "foo.k1_v1.k2_v2 15 1h"]),
    ("testSameDomainMultipleXdsConfigUpdate",
     [resource("foo-1", "foo", policy(10, key="k1", value="v1")),
      resource("foo-2", "foo", policy(100, key="k1", value="v2"))],
     ["foo.k1_v1 10 1m", "foo.k1_v2 100 1m"]),
]
"""Resources of a control plane, and the limits they make."""
