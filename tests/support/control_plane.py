"""A control plane that sends limits over the aggregated discovery service, as Envoy Gateway does."""

import queue
from concurrent.futures import ThreadPoolExecutor

import grpc
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, json_format, message_factory, struct_pb2

from .server import free_port
from .waiting import eventually

PACKAGE = "ratelimit.config.ratelimit.v3"
TYPE_URL = f"type.googleapis.com/{PACKAGE}.RateLimitConfig"


def _messages():
    """The messages of rls_conf.proto, which no package for Python has."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="rls_conf.proto", package=PACKAGE, syntax="proto3",
                                              dependency=[struct_pb2.DESCRIPTOR.name])
    units = file.enum_type.add(name="RateLimitUnit")
    for number, name in enumerate(["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"]):
        units.value.add(name=name, number=number)
    scalars = {"string": kinds.TYPE_STRING, "bool": kinds.TYPE_BOOL, "uint32": kinds.TYPE_UINT32}
    for message, fields in {
        "RateLimitConfig": ["name string", "domain string", "descriptors *RateLimitDescriptor"],
        "RateLimitDescriptor": ["key string", "value string", "rate_limit RateLimitPolicy",
                                "descriptors *RateLimitDescriptor", "shadow_mode bool", "detailed_metric bool",
                                "quota_mode bool", "metadata google.protobuf.Struct"],
        "RateLimitPolicy": ["unit RateLimitUnit", "requests_per_unit uint32", "unlimited bool", "name string",
                            "replaces *RateLimitReplace"],
        "RateLimitReplace": ["name string"],
    }.items():
        made = file.message_type.add(name=message)
        for number, (name, kind) in enumerate(map(str.split, fields), 1):
            field = made.field.add(name=name, number=number)
            field.label = kinds.LABEL_REPEATED if kind.startswith("*") else kinds.LABEL_OPTIONAL
            kind = kind.removeprefix("*")
            if kind in scalars:
                field.type = scalars[kind]
            else:
                field.type = kinds.TYPE_ENUM if kind == "RateLimitUnit" else kinds.TYPE_MESSAGE
                field.type_name = f".{kind}" if "." in kind else f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.RateLimitConfig"))


RateLimitConfig = _messages()


def resource(config):
    """A resource from a dictionary with the names of the protocol."""
    return any_pb2.Any(type_url=TYPE_URL, value=json_format.ParseDict(config, RateLimitConfig()).SerializeToString())


class ControlPlane:
    """One control plane. Use as a context manager.

    `requests` are all that it was sent. `publish` sends resources to every stream, and to later ones when they begin.
    """

    def __init__(self, port=None, credentials=None):
        self.port, self.credentials = port or free_port(), credentials
        self.requests, self.metadata, self.peers = [], [], []
        self.version, self.resources, self.streams = 0, None, []

    def __enter__(self):
        self.server = grpc.server(ThreadPoolExecutor(8))
        ads_pb2_grpc_servicer = type("Servicer", (ads_pb2_grpc.AggregatedDiscoveryServiceServicer,),
                                     {"StreamAggregatedResources": lambda _, *words: self._stream(*words)})
        ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(ads_pb2_grpc_servicer(), self.server)
        address = f"127.0.0.1:{self.port}"
        if self.credentials:
            self.server.add_secure_port(address, self.credentials)
        else:
            self.server.add_insecure_port(address)
        self.server.start()
        return self

    def __exit__(self, *_):
        for stream in self.streams:
            stream.put(None)
        self.server.stop(0).wait()

    def publish(self, *configs):
        """Send these; returns what is answered."""
        self.version += 1
        self.resources = [one if isinstance(one, any_pb2.Any) else resource(one) for one in configs]
        for stream in self.streams:
            stream.put(self.version)
        return self.answer()

    def answer(self):
        """The answer to the newest version."""
        return eventually(lambda: next((one for one in self.requests if one.response_nonce == str(self.version)), None))

    def _stream(self, requests, context):
        self.metadata.append(dict(context.invocation_metadata()))
        versions = queue.Queue()
        self.streams.append(versions)
        context.add_callback(lambda: versions.put(None))

        def read():
            try:
                for request in requests:
                    self.requests.append(request)
                    if not request.response_nonce and self.resources is not None:
                        versions.put(self.version)
            except grpc.RpcError:
                pass  # the stream has ended

        with ThreadPoolExecutor(1) as reader:
            reader.submit(read)
            while (version := versions.get()) is not None:
                yield discovery_pb2.DiscoveryResponse(version_info=f"v{version}", nonce=str(version),
                                                      type_url=TYPE_URL, resources=self.resources)
            self.streams.remove(versions)
            context.cancel()
