"""DUMP payloads made by hand, and ways to damage them.

A DUMP payload of a window, as the server frames it:

    07  81 <8 bytes: type's name and encoding version>  05 <string: the value>  00  <2 bytes: RDB version>  <8: CRC64>

The value is a sequence of LEB128 integers: resolution (ms), subintervals, number of counts, then for each count the
distance from the subinterval before it and its units. With a block, a 0, a 2 and the block's instant come before
all that, or stand alone.
"""

from .bounds import EDGES

TYPE_AND_ID = 10  # bytes before the value's opcode
FOOTER = 10  # RDB version and checksum


def leb128(number):
    """An unsigned integer, seven bits a byte, lowest first."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def value_of(resolution, subintervals, counts, announced=None):
    """A window's bytes. `counts` are pairs of subinterval and units, oldest first; nothing is checked."""
    fields = [leb128(resolution), leb128(subintervals), leb128(len(counts) if announced is None else announced)]
    previous = 0
    for subinterval, units in counts:
        fields += leb128((subinterval - previous) % 2**64), leb128(units)
        previous = subinterval
    return b"".join(fields)


def blocked(until, value=b""):
    """A block's bytes, with those of a window or without."""
    return leb128(0) + leb128(2) + leb128(until) + value


def fields_of(value):
    """The integers of a window's bytes."""
    numbers, number, shift = [], 0, 0
    for byte in value:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    return numbers


class Frame:
    """What one server puts around a window's bytes, learned from a DUMP of its own."""

    def __init__(self, dump):
        assert dump[0] == 7 and dump[1] == 0x81 and dump[TYPE_AND_ID] == 5, dump
        self.head = dump[:TYPE_AND_ID + 1]
        self.foot = dump[-FOOTER:-8] + bytes(8)

    def body(self, value):
        """A payload without its footer."""
        if len(value) < 1 << 6:
            length = bytes([len(value)])
        elif len(value) < 1 << 14:
            length = (0x4000 | len(value)).to_bytes(2, "big")
        else:
            length = b"\x80" + len(value).to_bytes(4, "big")
        return self.head + length + value + b"\0"

    def around(self, value):
        """A payload, complete except its checksum."""
        return self.body(value) + self.foot


def damaged(rng, value, other):
    """The bytes with one to three things wrong with them; `other` is material to splice in."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(value) + 1)
        kind = rng.randrange(7)
        if kind == 0 and at < len(value):  # a bit
            value = value[:at] + bytes([value[at] ^ 1 << rng.randrange(8)]) + value[at + 1:]
        elif kind == 1 and at < len(value):  # a byte
            value = value[:at] + rng.randbytes(1) + value[at + 1:]
        elif kind == 2:  # an insertion
            value = value[:at] + rng.randbytes(rng.randint(1, 6)) + value[at:]
        elif kind == 3:  # a deletion
            value = value[:at] + value[at + rng.randint(1, 4):]
        elif kind == 4:  # a part of another one
            begin = rng.randrange(len(other))
            value = value[:at] + other[begin:begin + rng.randint(1, 12)] + value[at + rng.randint(0, 12):]
        elif kind == 5:  # cut short
            value = value[:at]
        else:  # a field of its own replaced
            fields = fields_of(value)
            if fields:
                index = rng.randrange(min(len(fields), rng.choice((4, 64))))
                near = fields[index] + rng.randint(-2, 2)
                fields[index] = rng.choice((rng.choice(EDGES), near, rng.choice(fields), rng.getrandbits(20))) % 2**64
            value = b"".join(map(leb128, fields))
    return value
