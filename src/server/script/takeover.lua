-- Hands a key that swlimit.lua has written over to the module, on a server that has loaded it.
--
--   EVALSHA <sha> 1 key
--
-- The reply is 1 if the key is the module's now, with its counts, holds and expiry; 0 if there is nothing to hand over:
-- no key, a key of the module, or somebody else's. After an error the key is what it was. swlimit.lua describes the
-- layouts.
--
-- The module gets the effects that it replicates, in SWLIMIT.APPLY. While the old key stands, it reads them, checks
-- rights and memory, and answers WRONGTYPE: only then the old key goes.

local HEADER, SLOT, UNIT, PAIRS = 76, 16, 17592186044416, 500
local DAMAGED = 'ERR the key is damaged: '
local key, unpack, format, spread = KEYS[1], struct.unpack, string.format, table.unpack or _G.unpack

local function ask(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then error({err = reply.err}, 0) end
  return reply
end

local function decimal(number) return format('%d', number) end

-- A text as words have it: other bytes than these are escaped.
local function escaped(text)
  return (string.gsub(text, '[^A-Za-z0-9._-]', function(byte) return format('%%%02x', string.byte(byte)) end))
end

-- The effects that make the key again, in their order, each after the key's name.
local effects = {}
local function add(word, till)
  effects[#effects + 1], effects[#effects + 2] = key, word .. '~' .. till
end

local function add_window(value, till)
  local since = ''
  if string.sub(value, 1, 4) == 'swl2' then
    since, value = '^' .. decimal(-unpack('<d', value, 5)), string.sub(value, 9) -- the rest as without it
  end
  local _, resolution, subintervals, newest, through, _, blocked, slots, _, before = unpack('<I4ddddddddd', value)
  local window = 'c' .. decimal(resolution) .. '*' .. decimal(subintervals) .. '@'
  for number = 0, resolution > 0 and slots or -1 do
    local subinterval, total = newest, through
    if number < slots then subinterval, total = unpack('<dd', value, HEADER + 1 + SLOT * number) end
    add(window .. decimal(subinterval * resolution) .. '+' .. decimal(total - before) .. since, till)
    before, since = total, ''
  end
  if blocked > 0 then add('b' .. decimal(blocked), till) end
end

local function add_budget(value, till)
  local _, used, since, ends = unpack('<I4ddd', value)
  add('p' .. decimal(ends) .. '@' .. decimal(since) .. '+' .. decimal(used), till)
end

-- The reservations of a 'v' member. They name their keys, which the module hashes.
local function reservations(member)
  local words, place = {}, 10
  while place <= #member do
    local kind, size, from = unpack('<BI4', member, place)
    local units, third, fourth, fifth, length, after = unpack('<ddddI4', member, from + size)
    local of = string.char(kind)
    if of == 'R' or of == 'W' then
      of = 'c' .. decimal(fourth) .. '*' .. decimal(fifth) .. '@' .. decimal(third) .. (of == 'W' and '^' or '')
    elseif of == 'B' then of = 'p' .. decimal(third)
    else of = 'h' .. escaped(string.sub(member, after, after + length - 1)) .. '#' .. decimal(third) end
    words[#words + 1] = ';' .. of .. '+' .. decimal(units) .. '=' .. escaped(string.sub(member, from, from + size - 1))
    place = after + length
  end
  return table.concat(words)
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
    add('hlast>1#' .. last .. '@0', '0')
    add('elast@0', till)
  end
  for i = 1, #ends, 2 do
    local id, token = ends[i], tokens[ends[i]]
    if not token then error({err = DAMAGED .. 'a hold has no token'}, 0) end
    local hold = 'h' .. escaped(id) .. '>' .. ends[i + 1] .. '#' .. token .. '@0+' .. (units[id] or '1')
    add(hold .. (reserved[token] or ''), till)
  end
end

-- What a key of the script's holds, once its effects are added; nil for other keys.
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
  if (magic == 'swl1' or magic == 'swl2') and #value >= HEADER then add_window(value, till)
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

-- Apply all effects; the first error, if any. While another value is there, each command gets one.
local function apply()
  local fault
  for from = 1, #effects, 2 * PAIRS do
    local reply = redis.pcall('SWLIMIT.APPLY', spread(effects, from, math.min(from + 2 * PAIRS - 1, #effects)))
    fault = type(reply) == 'table' and reply.err
    if fault and string.sub(fault, 1, 9) ~= 'WRONGTYPE' then return fault end
  end
  return fault
end

local function take_over()
  local expires = ask('PEXPIRETIME', key)
  local till = expires > 0 and decimal(expires) or '0'
  local value = read(till)
  if not value then return 0 end
  local refused = apply() or 'ERR the module did not expect this key'
  if string.sub(refused, 1, 9) ~= 'WRONGTYPE' then error({err = refused}, 0) end
  ask('DEL', key)
  local fault = apply()
  if fault then
    restore(value, till)
    error({err = fault}, 0)
  end
  return 1
end

local done, reply = pcall(take_over)
if done then return reply end
-- From Redis 7.0 on, pcall makes a string of a table. What is no error of the server's, damage has led to.
local fault = type(reply) == 'table' and reply.err or reply
if not string.find(fault, '^%u+ ') then fault = 'WRONGTYPE Operation against a key holding the wrong kind of value' end
return {err = fault}
