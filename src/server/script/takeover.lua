-- Hands a key that swlimit.lua has written over to the module, on a server that has loaded it.
--
--   EVALSHA <sha> 1 key
--
-- The reply is 1 if the key is the module's now, with its counts, holds and expiry; 0 if there is nothing to hand over:
-- no key, a key of the module, or somebody else's. After an error the key is what it was. swlimit.lua describes the
-- layouts.
--
-- The module gets the commands that it replicates. While the old key stands, it parses a command, checks rights and
-- memory, and answers WRONGTYPE: a first call of each kind tells whether all of them would be obeyed.

local MOST, HEADER, SLOT, UNIT = '9007199254740991', 76, 16, 17592186044416
local DAMAGED = 'ERR the key is damaged: '
local key, unpack, format, spread = KEYS[1], struct.unpack, string.format, table.unpack or _G.unpack

local function ask(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then error({err = reply.err}, 0) end
  return reply
end

local function decimal(number) return format('%d', number) end

-- The commands that make the key again, in their order, and one of each kind of them.
local commands, kinds = {}, {}
local function add(kind, words)
  commands[#commands + 1], kinds[kind] = words, words
end

local function add_window(value, till)
  local _, resolution, subintervals, newest, through, _, blocked, slots, _, before = unpack('<I4ddddddddd', value)
  local window, length = decimal(resolution * subintervals) .. 'ms', decimal(resolution) .. 'ms'
  for number = 0, resolution > 0 and slots or -1 do
    local subinterval, total = newest, through
    if number < slots then subinterval, total = unpack('<dd', value, HEADER + 1 + SLOT * number) end
    add('RECORD', {'SWLIMIT.RECORD', key, MOST, window, length, 'COST', decimal(total - before), 'AT',
      decimal(subinterval * resolution), 'UNTIL', till})
    before = total
  end
  if blocked > 0 then add('BLOCK', {'SWLIMIT.BLOCK', key, '1ms', 'AT', decimal(blocked - 1), 'UNTIL', till}) end
end

local function add_budget(value, till)
  local _, used, since, ends = unpack('<I4ddd', value)
  add('BUDGET', {'SWLIMIT.BUDGET', key, MOST, decimal(ends), 'COST', decimal(used), 'FORCE', 'AT', decimal(since),
    'UNTIL', till})
end

local encoded = {} -- the same units, lengths and instants come again and again
local function leb128(number)
  local bytes, rest = encoded[number], number
  if bytes then return bytes end
  bytes = ''
  while rest >= 128 do
    local low = rest % 128
    bytes, rest = bytes .. string.char(low + 128), (rest - low) / 128
  end
  encoded[number] = bytes .. string.char(rest)
  return encoded[number]
end

-- The reservations of a 'v' member, as RESERVED takes them: a reservation may name its key, which the module hashes.
local function reservations(member)
  local words, place = {}, 10
  local NAMED = {R = 3, B = 4, H = 5}
  while place <= #member do
    local kind, size, from = unpack('<BI4', member, place)
    local units, third, fourth, fifth, length, after = unpack('<ddddI4', member, from + size)
    kind = string.char(kind)
    local rest = ''
    if kind == 'R' then rest = leb128(fourth) .. leb128(fifth)
    elseif kind == 'H' then rest = leb128(length) .. string.sub(member, after, after + length - 1) end
    local name = string.sub(member, from, from + size - 1)
    words[#words + 1] = leb128(NAMED[kind]) .. leb128(size) .. name .. leb128(units) .. leb128(third) .. rest
    place = after + length
  end
  return words
end

local function add_holds(members, till)
  local tokens, units, reserved, ends, last = {}, {}, {}, {}, nil
  for i = 1, #members, 2 do
    local member, score = members[i], members[i + 1]
    local kind, id = string.sub(member, 1, 1), string.sub(member, 2)
    if member == 'l' then last = string.sub(score, 2)
    elseif kind == 't' then tokens[id] = string.sub(score, 2)
    elseif kind == 'e' then ends[#ends + 1], ends[#ends + 2] = id, score
    elseif kind == 'u' then units[id] = decimal(score / UNIT)
    elseif kind == 'v' then reserved[decimal((unpack('<d', member, 2)))] = reservations(member)
    end
  end
  local has_last = false
  for i = 1, #ends, 2 do has_last = has_last or tokens[ends[i]] == last end
  if not has_last then -- the hold that got it has gone
    add('HOLD', {'SWLIMIT.HOLD', key, MOST, '1ms', 'last', 'AT', '0', 'END', '1', 'TOKEN', last, 'UNTIL', '0'})
    add('RELEASE', {'SWLIMIT.RELEASE', key, 'last', 'AT', '0', 'UNTIL', till})
  end
  for i = 1, #ends, 2 do
    local id, token = ends[i], tokens[ends[i]]
    if not token then error({err = DAMAGED .. 'a hold has no token'}, 0) end
    local kept = reserved[token]
    if kept then
      add('RESERVED', {'SWLIMIT.HOLD', key, MOST, '1ms', id, 'COST', units[id] or '1', 'AT', '0', 'END', ends[i + 1],
        'TOKEN', token, 'UNTIL', till, 'RESERVED', decimal(#kept), spread(kept)})
    else
      local words = {'SWLIMIT.HOLD', key, MOST, '1ms', id, 'AT', '0', 'END', ends[i + 1], 'TOKEN', token, 'UNTIL', till}
      if units[id] then words[14], words[15] = 'COST', units[id] end
      add('HOLD', words)
    end
  end
end

-- What a key of the script's holds, and the commands that make it again; nil for other keys.
local function read(till)
  local kind = ask('TYPE', key).ok
  if kind == 'zset' then
    local score = ask('ZSCORE', key, 'l')
    if not score or score + 0 >= 0 then return nil end
    local members = ask('ZRANGE', key, '0', '-1', 'WITHSCORES')
    add_holds(members, till)
    return members
  end
  local value = kind == 'string' and ask('GET', key)
  local magic = value and string.sub(value, 1, 4)
  if magic == 'swl1' and #value >= HEADER then add_window(value, till)
  elseif magic == 'swb1' and #value == 28 then add_budget(value, till)
  else return nil
  end
  return value
end

local function restore(value, till)
  redis.pcall('DEL', key)
  if type(value) == 'string' then redis.pcall('SET', key, value)
  else
    for from = 1, #value, 1000 do
      local part = {}
      for i = from, math.min(from + 999, #value), 2 do part[#part + 1], part[#part + 2] = value[i + 1], value[i] end
      redis.pcall('ZADD', key, spread(part))
    end
  end
  if till ~= '0' then redis.pcall('PEXPIREAT', key, till) end
end

local function take_over()
  local expires = ask('PEXPIRETIME', key)
  local till = expires > 0 and decimal(expires) or '0'
  local value = read(till)
  if not value then return 0 end
  for _, words in pairs(kinds) do
    local reply = redis.pcall(spread(words))
    local fault = type(reply) == 'table' and reply.err or 'ERR the module did not expect this key'
    if string.sub(fault, 1, 9) ~= 'WRONGTYPE' then error({err = fault}, 0) end
  end
  ask('DEL', key)
  for _, words in ipairs(commands) do
    local reply = redis.pcall(spread(words))
    if type(reply) == 'table' and reply.err then
      restore(value, till)
      error({err = reply.err}, 0)
    end
  end
  return 1
end

local done, reply = pcall(take_over)
if done then return reply end
-- From Redis 7.0 on, pcall makes a string of a table. What is no error of the server's, damage has led to.
local fault = type(reply) == 'table' and reply.err or reply
if not string.find(fault, '^%u+ ') then fault = 'WRONGTYPE Operation against a key holding the wrong kind of value' end
return {err = fault}
