-- swlimit as a script, for servers that load no modules: the decisions and replies of the module's commands.
--
--   EVALSHA    <sha> 1 key ALLOW limit window resolution [COST n] [PARTIAL] [STRICT] [BLOCK duration] [AT unix-ms]
--   EVALSHA_RO <sha> 1 key PEEK limit window resolution [COST n] [PARTIAL] [STRICT] [AT unix-ms]
--   EVALSHA    <sha> 2 key key MALLOW limit window resolution cost limit window resolution cost [STRICT] [AT unix-ms]
--   EVALSHA    <sha> 1 key BUDGET limit until [COST n] [PARTIAL | FORCE] [AT unix-ms]
--
-- and RECORD, REFUND, BLOCK, UNBLOCK, INFO, and ADMIT without HOLD clauses: the keys are those of EVALSHA, ARGV is the
-- command's name and its other words. ALLOW and PEEK also take one packed argument, which costs less than words: a byte
-- of flags (1: count, as ALLOW does; 2: PARTIAL; 4: STRICT), then limit, resolution (ms), subintervals, cost and,
-- optionally, AT as unsigned little-endian integers of 8 bytes: struct.pack('<BI8I8I8I8', ...). The reply is packed too,
-- as three little-endian doubles: granted, remaining, reset_after if the first one is positive, that is, if units are
-- granted; else minus remaining, retry_after, reset_after. Errors are no different.
--
-- A key is a string. All numbers are little-endian doubles that hold integers. A window, and a block:
--
--   offset  0  'swl1', four bytes
--           4  resolution R in ms; 0 when nothing is counted
--          12  subintervals N of the window; 0 when nothing is counted
--          20  newest: the youngest subinterval that holds a count
--          28  through: running total of units up to and including the newest subinterval
--          36  slid: running total through subinterval newest - N
--          44  blocked: the block's instant in ms, 0 without one
--          52  number of slots
--          60  previous: running total before the newest subinterval
--          68  before: running total before the first slot
--          76  the slots, oldest first, 16 bytes each: a subinterval from newest - N on that holds a count and is not
--              the newest, and the running total through it
--
-- A budget, 28 bytes: 'swb1', the units used, when the first of them was counted, and the end of the period (ms each).
--
-- Running totals make the units of any span a difference of two numbers. A grant in the newest subinterval only
-- rewrites `through`: it leaves the expiry alone and costs the same whatever N is. Slots are found by bisection.
--
-- No result is rounded: numbers are integers below 2^53, which doubles hold, and products are compared with 2^53 before
-- they are used. Only instants within 30 years of 2^53 ms make replies that are not exact. The page how-it-decides.md
-- has the formulas (n[i]: the units of subinterval i, c: the current subinterval, e: the ms elapsed in it),
-- commands.md the replies; '§' is a paragraph of the specification that both tell: 1 units, 2 window, 3 time, 4 commands
-- for one key, 5 several limits, 6 changing the limit, 8 errors, 10 blocking, 14 budgets, 15 one decision of everything.

local MAX = 9007199254740991      -- 2^53 - 1, the largest limit, cost, count and instant
local LONGEST = 315360000000      -- 3650 days in ms
local MOST_SUBINTERVALS = 4096
local WRONGTYPE = 'WRONGTYPE Operation against a key holding the wrong kind of value'

---------------------------------------------------------------------------------------------------------------------
-- The call
---------------------------------------------------------------------------------------------------------------------

local call, structs, keys = redis.pcall, struct, KEYS
local unpack, pack = structs.unpack, structs.pack
local packed = ARGV[1] or ''      -- an ALLOW or a PEEK in one argument; nil where the command is none of these
local command, request            -- its name and quota: limit, R, N (R in ms) or ends, cost, partial, strict
local words                       -- whether it came in words, and is answered so
local units, duration             -- of REFUND, of BLOCK
local age, since, block, nx, at, till
local force, PERIOD_END           -- of BUDGET: FORCE, and the error of an end that is none
local quotas                      -- of MALLOW and ADMIT, for each key: limit, cost, and R, N or `ends`

if #packed == 33 then             -- nothing more to find out
elseif #packed == 41 then
  at = unpack('<I8', packed, 34)
  if at > MAX then return {err = 'ERR packed call is out of range'} end
else
  words = true
  local limit, R, N, ends
  local cost, partial, strict = 1, false, false
  -- Every word is checked before a key is touched (§8).
  local function integer(word, least)
    local number = word and string.find(word, '^%d+$') and tonumber(word)
    return number and number >= least and number <= MAX and number
  end

  local function milliseconds(word, least) -- a duration, §1
    local digits, unit = string.match(word or '', '^(%d+)(%a*)$')
    if not digits then return end
    unit = string.lower(unit)
    local scale = (unit == '' or unit == 's') and 1000 or unit == 'ms' and 1 or unit == 'm' and 60000
      or unit == 'h' and 3600000 or unit == 'd' and 86400000
    local ms = scale and tonumber(digits) * scale
    return ms and ms >= least and ms <= LONGEST and ms
  end

  local function quota(from) -- limit, R, N of three words; or nil and the error, which is nil where a word is missing
    local most = integer(ARGV[from], 0)
    if not most then return nil, ARGV[from] and 'ERR limit must be an integer between 0 and 9007199254740991' end
    local window, resolution = milliseconds(ARGV[from + 1], 1), milliseconds(ARGV[from + 2], 1)
    if not (window and resolution) then
      local name, place = window and 'resolution' or 'window', window and from + 2 or from + 1
      return nil, ARGV[place] and 'ERR ' .. name .. ' must be a duration such as 60, 500ms, 5m, 1h or 7d'
    end
    if window % resolution ~= 0 then return nil, 'ERR resolution must divide the window evenly' end
    local subintervals = window / resolution
    if subintervals > MOST_SUBINTERVALS then
      return nil, string.format('ERR window / resolution is %.0f subintervals, above swlimit.max-subintervals (%d)',
        subintervals, MOST_SUBINTERVALS)
    end
    return most, resolution, subintervals
  end

  local function syntax(word) -- quoted in ASCII, as the module does, so that no byte breaks the reply's line
    local quoted = string.gsub(string.sub(word, 1, 64), '[%c"\'\\\128-\255]', function(byte)
      local short = {['\t'] = '\\t', ['\r'] = '\\r', ['\n'] = '\\n', ["'"] = "\\'", ['"'] = '\\"', ['\\'] = '\\\\'}
      return short[byte] or string.format('\\x%02x', string.byte(byte))
    end)
    return {err = "ERR syntax error near '" .. quoted .. "'"}
  end

  local given = packed
  command = string.upper(given)
  local options, first = '', 2    -- the options it takes, and where in ARGV they begin
  if command == 'ALLOW' then options, first = ' COST PARTIAL STRICT BLOCK AT ', 5
  elseif command == 'PEEK' then options, first = ' COST PARTIAL STRICT AT ', 5
  elseif command == 'RECORD' then options, first = ' COST STRICT AGE BLOCK AT UNTIL ', 5
  elseif command == 'REFUND' then options, first = ' AGE SINCE AT UNTIL ', 3
  elseif command == 'BLOCK' then options, first = ' NX AT UNTIL ', 3
  elseif command == 'UNBLOCK' then options = ' AT UNTIL '
  elseif command == 'MALLOW' or command == 'ADMIT' then options = ' STRICT AT '
  elseif command == 'BUDGET' then options, first = ' COST PARTIAL FORCE AT UNTIL ', 4
  elseif command ~= 'INFO' then return syntax(given)
  end

  local count = #ARGV - 1
  local arity = {err = "ERR wrong number of arguments for 'swlimit." .. string.lower(command) .. "' command"}
  local period
  if command == 'BUDGET' or command == 'ADMIT' then
    PERIOD_END = 'ERR until must be a Unix time in milliseconds after now, at most 3650 days'
    period = function(from) -- limit and end of a budget, or nil and the error, as above
      local most, instant = integer(ARGV[from], 0), integer(ARGV[from + 1], 0)
      if not most then return nil, ARGV[from] and 'ERR limit must be an integer between 0 and 9007199254740991' end
      if not instant then return nil, ARGV[from + 1] and PERIOD_END end
      return most, instant
    end
  end

  if command == 'MALLOW' or command == 'ADMIT' then
    if 2 + #KEYS + count < 7 then return arity end
    local NUMKEYS = 'ERR numkeys must be a positive integer that matches the keys given'
    local MOST_ADMITTED = 64
    if #KEYS == 0 or #KEYS > (command == 'ADMIT' and MOST_ADMITTED or count / 4) then return {err = NUMKEYS} end
    quotas, first = {}, 2
    for i = 1, #KEYS do
      local kind, asked, fault, word = 'RATE', {}, nil, ARGV[first]
      if command == 'ADMIT' then kind, first = string.upper(word or ''), first + 1 end
      if kind == 'RATE' then
        asked.limit, asked.R, asked.N = quota(first)
        fault, first = asked.R, first + 4
      elseif kind == 'BUDGET' then
        asked.limit, asked.ends = period(first)
        fault, first = asked.ends, first + 3
      elseif kind == 'HOLD' then return {err = 'ERR a HOLD clause needs the module'}
      else return word and syntax(word) or {err = NUMKEYS}
      end
      if asked.limit then
        asked.cost = integer(ARGV[first - 1], 1)
        fault = ARGV[first - 1] and 'ERR cost must be an integer between 1 and 9007199254740991'
      end
      if not asked.cost then return fault and {err = fault} or syntax(word) end
      quotas[i] = asked
    end
  else
    if #KEYS ~= 1 or #ARGV < first - 1 or (command == 'INFO' and count > 0) then return arity end
    if first == 5 then
      limit, R, N = quota(2)
      if not limit then return {err = R} end
    elseif command == 'BUDGET' then
      limit, ends = period(2)
      if not limit then return {err = ends} end
    elseif command == 'REFUND' then
      units = integer(ARGV[2], 1)
      if not units then return {err = 'ERR units must be an integer between 1 and 9007199254740991'} end
    elseif command == 'BLOCK' then
      duration = milliseconds(ARGV[2], 1)
      if not duration then return {err = 'ERR BLOCK must be a duration such as 60, 500ms, 5m, 1h or 7d'} end
    end
  end

  local seen, i = {}, first
  while i <= #ARGV do
    local word = ARGV[i]
    local name = string.upper(word)
    if seen[name] or not string.find(options, ' ' .. name .. ' ', 1, true) then return syntax(word) end
    if name == 'AGE' and seen.SINCE or name == 'SINCE' and seen.AGE then return syntax(word) end
    seen[name] = true
    if name == 'PARTIAL' or name == 'FORCE' then
      partial, force = partial or name == 'PARTIAL', force or name == 'FORCE'
      if partial and force then return syntax(word) end
    elseif name == 'STRICT' then strict = true
    elseif name == 'NX' then nx = true
    else
      i = i + 1
      local value, fault = ARGV[i], nil
      if not value then return syntax(word) end
      if name == 'COST' then cost = integer(value, 1)
        if not cost then fault = 'ERR cost must be an integer between 1 and 9007199254740991' end
      elseif name == 'AGE' or name == 'BLOCK' then
        local ms = milliseconds(value, name == 'AGE' and 0 or 1)
        if name == 'AGE' then age = ms else block = ms end
        if not ms then fault = 'ERR ' .. name .. ' must be a duration such as 60, 500ms, 5m, 1h or 7d' end
      elseif name == 'AT' or name == 'UNTIL' or name == 'SINCE' then
        local instant = integer(value, 0)
        if name == 'AT' then at = instant elseif name == 'UNTIL' then till = instant else since = instant end
        if not instant then fault = 'ERR ' .. name .. ' must be a Unix time in milliseconds' end
      else return syntax(word) -- several names in one word
      end
      if fault then return {err = fault} end
    end
    i = i + 1
  end

  if quotas then
    local LATEST_ADMITTED = 9007199254740 -- with the module ADMIT may hold, and the tokens of holds are of microseconds
    if command == 'ADMIT' and at and at > LATEST_ADMITTED then
      return {err = 'ERR AT must be a Unix time in milliseconds'}
    end
    local named = {}
    for _, name in ipairs(KEYS) do
      if named[name] then return {err = 'ERR key named twice'} end
      named[name] = true
    end
  end

  if command == 'ALLOW' or command == 'PEEK' then
    local flags = (command == 'ALLOW' and 1 or 0) + (partial and 2 or 0) + (strict and 4 or 0)
    packed = pack('<BI8I8I8I8', flags, limit, R, N, cost)
  else
    packed = nil
    request = {limit = limit, ends = ends, R = R, N = N, cost = cost, partial = partial, strict = strict}
  end
end

-- The server decides what time it is, unless the caller says so (§3), as it has to where there is no clock.
local now = at
if not now then
  local clock = call('TIME')
  local seconds, micros = clock[1], clock[2]
  if not micros then return {err = 'ERR no clock: ' .. clock.err} end
  micros = micros + 0
  now = seconds * 1000 + (micros - micros % 1000) / 1000
  if now == 0 then return {err = 'ERR no clock: TIME says 0'} end
end

---------------------------------------------------------------------------------------------------------------------
-- ALLOW and PEEK of a key that is kept at the geometry asked for. Written without functions, because each would be
-- made anew by every call, and they cost more than the decision; each name for a constant costs, too. What does not
-- end here is decided by what follows, which can do all of this, too.
---------------------------------------------------------------------------------------------------------------------

if packed then
  local flags, limit, R, N, cost = unpack('<BI8I8I8I8', packed)
  local window, key = R * N, keys[1]
  if limit > MAX or window < 1 or window > LONGEST or N > MOST_SUBINTERVALS or cost < 1 or cost > MAX
    or not key or keys[2] then
    return {err = 'ERR packed call is out of range'}
  end
  local looks, partial, strict
  if flags ~= 1 then
    if flags > 7 then return {err = 'ERR packed call is out of range'} end
    looks, partial, strict = flags % 2 == 0, flags % 4 >= 2, flags >= 4
  end
  local value = call('GETRANGE', key, '0', '91') -- the header and a slot
  local bytes = #value
  if bytes < 76 then
    if value ~= '' then return {err = value.err or WRONGTYPE} end
    value = string.rep('\0', 76)
  end
  local magic, own_R, own_N, newest, through, slid, blocked, slots, previous, before = unpack('<I4ddddddddd', value)
  if own_R == R and own_N == N or bytes == 0 then
    local length = 76 + 16 * slots
    if not (magic == 829192051 and newest >= 0 and newest <= MAX and before >= 0 and slid >= before and previous >= slid
        and through > previous and through <= MAX and blocked >= 0
        and (bytes == length or bytes == 92 and length > 92 and slots <= N)) then
      if bytes > 0 then return {err = WRONGTYPE} end -- somebody else has written it
      newest = -N - 2
    end

    -- §3: a decision is made at max(now, newest·R).
    local e = now % R
    local c = (now - e) / R

    -- The running totals before and through c - N, the subinterval that slides out. `first` is the first slot from
    -- c - N on; slot number `slots` is the newest subinterval.
    local first = 0
    if c < newest then c, e = newest, 0
    elseif c > newest then
      local oldest = c - N
      if oldest > newest then
        slid, before, first = through, through, slots + 1
      else
        if slots > 1 then
          value = call('GETRANGE', key, '0', '331') -- the header and 16 slots
          bytes = #value
          if bytes ~= length and (bytes ~= 332 or length < 332) then return {err = WRONGTYPE} end
        end
        -- Subintervals ascend by at least one from slot to slot: that bounds where c - N can be.
        local low, high = oldest - newest + slots, slots
        if low < 0 then low = 0 end
        if slots > 0 then
          local _, oldest_slot = unpack('<dd', value, 69)
          if oldest - oldest_slot < high then high = oldest - oldest_slot end
          if high < low then high = low end
        end
        while low < high do
          local middle = (low + high - (low + high) % 2) / 2
          local piece, place = value, 77 + 16 * middle
          if place + 7 > bytes then piece, place = call('GETRANGE', key, place - 1, place + 6), 1 end
          if #piece < place + 7 then return {err = WRONGTYPE} end
          if unpack('<d', piece, place) < oldest then low = middle + 1 else high = middle end
        end
        first = low
        local piece, place = value, 69 + 16 * first
        local size = first < slots and 24 or 8
        if place + size - 1 > bytes then piece, place = call('GETRANGE', key, place - 1, place + size - 2), 1 end
        if #piece < place + size - 1 then return {err = WRONGTYPE} end
        local subinterval, total = newest, through
        if first < slots then before, subinterval, total = unpack('<ddd', piece, place)
        else before = unpack('<d', piece, place) end
        slid = subinterval == oldest and total or before
      end
    end

    -- §2: estimate = full + trailing·(R - e) / R, rounded up; with STRICT full + trailing.
    local trailing = slid - before
    local weighted, exact = trailing, true
    if trailing > 0 and not strict then
      local product = trailing * (R - e)
      local rest = product % R
      weighted = (product - rest) / R
      if rest > 0 then weighted = weighted + 1 end
      exact = product <= MAX
    end
    local remaining = limit - through + slid - weighted
    local granted = cost
    if cost > remaining then
      if remaining < 0 then remaining = 0 end
      granted = partial and remaining or 0
    end

    if not exact then -- the product needs more than a double
    elseif granted > 0 and blocked <= now then
      local sum = through + granted
      if sum > MAX then -- totals begin anew, or there are too many units
      elseif looks then
        local reset_after = (newest + N + 1) * R - now
        if reset_after < 0 then reset_after = 0 end
        return words and {granted, limit, remaining, 0, reset_after} or pack('<ddd', granted, remaining, reset_after)
      else
        local reset_after, done = (c + N + 1) * R - now, nil
        if c == newest then
          done = call('SETRANGE', key, '28', pack('<d', sum))
        else
          -- A new subinterval: the one that was the newest becomes a slot, and slots before c - N go.
          local tail = ''
          if first <= slots then
            tail = string.sub(value, 77 + 16 * first)
            if slots > 16 then
              tail = call('GETRANGE', key, 76 + 16 * first, -1)
              if #tail ~= 16 * (slots - first) then return {err = WRONGTYPE} end
            end
            tail = tail .. pack('<dd', newest, through)
          else
            sum, slid, previous, through, before = granted, 0, 0, 0, 0
          end
          local head = pack('<I4ddddddddd', 829192051, R, N, c, sum, slid, blocked, #tail / 16, through, before)
          local unit, expiry = 'PXAT', now + reset_after
          if at then unit, expiry = 'PX', reset_after end
          done = call('SET', key, head .. tail, unit, string.format('%.0f', expiry))
        end
        if done ~= length and type(done) == 'table' and done.err then return {err = done.err} end
        remaining = remaining - granted
        return words and {granted, limit, remaining, 0, reset_after} or pack('<ddd', granted, remaining, reset_after)
      end
    elseif not block or blocked > now then
      -- Denied. §4: retry_after is exact; the window's part of it is the time until enough has slid out.
      local room = limit - (partial and 1 or cost)
      local reset_after = (newest + N + 1) * R - now
      local retry_after = 0
      if granted == 0 then
        if room < 0 then retry_after = -1
        else
          -- The first subinterval through which so much is counted that all younger ones fit into `room`. Mostly it is
          -- the newest or the oldest, so that these are looked at first.
          local earlier, last, total, needed = previous, newest, through, through - room
          if previous >= needed then
            local low, high, probe = first, slots, first
            while low < high do
              local piece, place = value, 69 + 16 * probe
              if place + 23 > bytes and bytes == 92 then
                value = call('GETRANGE', key, '0', '331')
                bytes, piece = #value, value
              end
              if place + 23 > bytes then piece, place = call('GETRANGE', key, place - 1, place + 22), 1 end
              if #piece < place + 23 then return {err = WRONGTYPE} end
              local one, other, third = unpack('<ddd', piece, place)
              if third < needed then low, earlier = probe + 1, third
              else high, earlier, last, total = probe, one, other, third end
              probe = (low + high - (low + high) % 2) / 2
            end
          end
          -- While it is trailing, its units fit as soon as (R - e)·units <= (room - younger)·R.
          retry_after = reset_after - (newest - last) * R
          if not strict then
            local held, product = total - earlier, (room - through + total) * R
            if held <= 0 then return {err = WRONGTYPE} end
            retry_after, exact = retry_after - (product - product % held) / held, product <= MAX
          end
          if retry_after < 0 then retry_after = 0 end
        end
      end
      if exact then
        if reset_after < 0 then reset_after = 0 end
        if blocked > now then -- §10
          remaining = 0
          if retry_after >= 0 and blocked - now > retry_after then retry_after = blocked - now end
          if blocked - now > reset_after then reset_after = blocked - now end
        end
        if words then return {0, limit, remaining, retry_after, reset_after} end
        return pack('<ddd', -remaining, retry_after, reset_after)
      end
    end
  end
  command = looks and 'PEEK' or 'ALLOW'
  request = {limit = limit, R = R, N = N, cost = cost, partial = partial, strict = strict}
end

---------------------------------------------------------------------------------------------------------------------
-- Everything else
---------------------------------------------------------------------------------------------------------------------

local MAGIC = 829192051 -- 'swl1'
local OVERFLOW = 'ERR count would overflow'

-- Ends the script with an error, which `answer` returns.
local function fail(message)
  error({err = message}, 0)
end

-- The reply of a function, or the error it fails with.
local function answer(decide, ...)
  local done, reply = pcall(decide, ...)
  if done then return reply end
  return {err = type(reply) == 'table' and reply.err or reply} -- from Redis 7.0 on, pcall makes a string of such a table
end

local function ask(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then fail(reply.err) end
  return reply
end

-- Store a value that lives for `lives` ms, in a key that lived for `lived` ms more (nil: a new one). §3: a key in which
-- nothing matters goes; the expiry is set only when the end has changed, or UNTIL says when.
local function put(key, value, lives, lived)
  if lives <= 0 then return ask('DEL', key) end
  if till then
    if till == 0 then return ask('SET', key, value) end
    return ask('SET', key, value, 'PXAT', string.format('%.0f', till))
  end
  if lives == lived then return ask('SET', key, value, 'KEEPTTL') end
  if at then return ask('SET', key, value, 'PX', string.format('%.0f', lives)) end
  return ask('SET', key, value, 'PXAT', string.format('%.0f', now + lives))
end

---------------------------------------------------------------------------------------------------------------------
-- Budgets (§14)
---------------------------------------------------------------------------------------------------------------------

local BUDGET_MAGIC = 828536691 -- 'swb1'

-- The budget of a key's value; nil for an empty one. Where there is a budget, at least one unit is used.
local function budget_of(value)
  if value == '' then return nil end
  if #value ~= 28 then fail(WRONGTYPE) end
  local magic, used, began, over = unpack('<I4ddd', value)
  if not (magic == BUDGET_MAGIC and used >= 1 and used <= MAX and used % 1 == 0 and began >= 0 and began % 1 == 0
      and over > began and over <= MAX and over - began <= LONGEST and over % 1 == 0) then
    fail(WRONGTYPE)
  end
  return {used = used, since = began, ends = over}
end

-- The first 29 bytes of a key tell a budget from everything else.
local function open_budget(key)
  return budget_of(ask('GETRANGE', key, '0', '28'))
end

local function check_end(instant)
  if instant <= now or instant - now > LONGEST then fail(PERIOD_END) end
end

-- What is in force of it at `now`: the units used, and its end; 0 and nil without one.
local function in_force(budget)
  if budget and now < budget.ends then return budget.used, budget.ends end
  return 0
end

-- What a request {limit, cost, partial} comes to: units granted.
local function afford(budget, request)
  local room = math.max(0, request.limit - in_force(budget))
  return request.cost <= room and request.cost or request.partial and room or 0
end

-- The reply as it reads at `now`, so many units having been granted.
local function spent(budget, request, granted)
  local used, over = in_force(budget)
  local left, retry = over and over - now or 0, 0
  if granted == 0 then retry = request.limit < (request.partial and 1 or request.cost) and -1 or left end
  return {granted, request.limit, math.max(0, request.limit - used), retry, left}
end

-- Count units; the budget with them.
local function spend(key, budget, request, amount)
  local used, over = in_force(budget)
  if amount > MAX - used then fail(OVERFLOW) end
  local after = {used = used + amount, since = over and budget.since or now, ends = over or request.ends}
  local value = pack('<I4ddd', BUDGET_MAGIC, after.used, after.since, after.ends)
  put(key, value, after.ends - now, budget and budget.ends - now)
  return after
end

if command == 'BUDGET' then -- before functions are made that it does not need
  return answer(function()
    local key = KEYS[1]
    check_end(request.ends)
    local budget = open_budget(key)
    local granted = afford(budget, request)
    local amount = force and request.cost or granted
    if amount > 0 then budget = spend(key, budget, request, amount) end
    return spent(budget, request, granted)
  end)
end

---------------------------------------------------------------------------------------------------------------------
-- Windows
---------------------------------------------------------------------------------------------------------------------

local function subinterval_at(instant, resolution)
  return (instant - instant % resolution) / resolution
end

-- The quotient of a·b / c rounded down, and whether there is a rest. Where the product is 2^53 or more, long division
-- over the bits of b, which is less than 2^39: no intermediate value reaches 2^53.
local function scale(a, b, c)
  local product = a * b
  if product <= MAX then
    local rest = product % c
    return (product - rest) / c, rest > 0
  end
  local part = a % c
  local whole, quotient, rest, bit = (a - part) / c * b, 0, 0, 274877906944
  while bit >= 1 do
    quotient = quotient * 2
    if rest >= c - rest then quotient, rest = quotient + 1, rest - (c - rest) else rest = rest + rest end
    if b >= bit then
      b = b - bit
      if rest >= c - part then quotient, rest = quotient + 1, rest - (c - part) else rest = rest + part end
    end
    bit = bit / 2
  end
  return whole + quotient, rest > 0
end

-- What a key holds: the header's fields, and `value`, its first bytes. nil for a missing key. Where any value is taken,
-- the second result is a budget.
local function open(key, takes_any)
  local value = ask('GETRANGE', key, '0', '331')
  if value == '' then return nil end
  if takes_any and string.sub(value, 1, 4) == 'swb1' then return nil, budget_of(value) end
  if #value < 76 or string.sub(value, 1, 4) ~= 'swl1' then fail(WRONGTYPE) end
  local entry = {key = key, value = value}
  local _
  _, entry.R, entry.N, entry.newest, entry.through, entry.slid, entry.blocked, entry.slots, entry.previous,
    entry.before = unpack('<I4ddddddddd', value)
  for _, field in ipairs({'R', 'N', 'newest', 'through', 'slid', 'blocked', 'slots', 'previous', 'before'}) do
    local number = entry[field]
    if not (number >= 0 and number <= MAX + LONGEST and number % 1 == 0) then fail(WRONGTYPE) end
  end
  local sound = #value == 76 + 16 * math.min(entry.slots, 16) and entry.slots <= entry.N
  if entry.R == 0 then
    sound = sound and entry.N == 0 and entry.newest == 0 and entry.through == 0 and entry.blocked > 0
  else
    sound = sound and entry.N >= 1 and entry.N <= MOST_SUBINTERVALS and entry.R * entry.N <= LONGEST
      and entry.newest <= subinterval_at(MAX, entry.R) and entry.through <= MAX
      and entry.before <= entry.slid and entry.slid <= entry.previous and entry.previous < entry.through
  end
  if not sound then fail(WRONGTYPE) end
  return entry
end

-- The slots of an entry, all of them, as bytes.
local function slots_of(entry)
  if entry.slots > 16 and #entry.value ~= 76 + 16 * entry.slots then
    entry.value = ask('GETRANGE', entry.key, '0', '-1')
    if #entry.value ~= 76 + 16 * entry.slots then fail(WRONGTYPE) end
  end
  return string.sub(entry.value, 77)
end

-- Of a slot: the running total before it, its subinterval, the running total through it. Slot number `slots` is the
-- newest subinterval.
local function slot(entry, number)
  if number % 1 ~= 0 then fail(WRONGTYPE) end -- damaged slots have led here
  local piece, place, size = entry.value, 69 + 16 * number, number < entry.slots and 24 or 8
  if #piece < place + size - 1 then
    piece, place = ask('GETRANGE', entry.key, place - 1, place + size - 2), 1
    if #piece < size then fail(WRONGTYPE) end
  end
  if number < entry.slots then return unpack('<ddd', piece, place) end
  return (unpack('<d', piece, place)), entry.newest, entry.through
end

-- The running total before a subinterval.
local function total_before(entry, subinterval)
  if subinterval > entry.newest then return entry.through end
  local low, high = math.max(0, subinterval - entry.newest + entry.slots), entry.slots
  if low < high then
    local _, oldest = slot(entry, 0)
    high = math.max(low, math.min(high, subinterval - oldest))
  end
  while low < high do
    local middle = math.floor((low + high) / 2)
    local _, found = slot(entry, middle)
    if found < subinterval then low = middle + 1 else high = middle end
  end
  return (slot(entry, low))
end

-- §3: ms from `now` until nothing that an entry counts matters any more, (newest + N + 1)·R - now. Negative when that
-- has passed. `now` is subtracted first, so that the product stays below 2^53.
local function time_to_end(entry)
  if entry.R == 0 then return -now end
  return (entry.newest + entry.N + 1 - subinterval_at(now, entry.R)) * entry.R - now % entry.R
end

-- Ms from `now` until nothing of an entry matters, its block included.
local function time_to_live(entry)
  return math.max(time_to_end(entry), entry.blocked - now)
end

-- How long an entry is blocked, in ms; nil when it is not.
local function blocked_for(entry)
  return entry and entry.blocked > now and entry.blocked - now or nil
end

-- §6: an entry as a request with its own geometry sees it. Nothing is moved: the units of stored subinterval i count
-- where min((i + 1)·R - 1, the instant) lies. `entry` is nil where nothing counts: from the stored end on nothing does.
local function view(entry, resolution, subintervals)
  if entry and (entry.R == 0 or time_to_end(entry) <= 0) then entry = nil end
  local own = entry and entry.R == resolution and entry.N == subintervals
  return {entry = entry, own = own, R = resolution, N = subintervals}
end

-- The subinterval, of the request's, in which the newest units are seen at an instant.
local function newest_seen(seen, instant)
  local entry = seen.entry
  if seen.own then return entry.newest end
  local start = entry.newest * entry.R
  return subinterval_at(math.min(start + entry.R - 1, math.max(instant, start)), seen.R)
end

-- §3: time never runs backwards for a key.
local function decision_instant(seen, instant)
  if not seen.entry then return instant end
  return math.max(instant, newest_seen(seen, instant) * seen.R)
end

-- §2: the estimate, rounded up, and `full + trailing`, at an instant.
local function load_at(seen, instant, whole)
  local entry, c = seen.entry, subinterval_at(instant, seen.R)
  if not entry then return 0, 0 end
  local oldest, slid, before = c - seen.N, nil, nil
  if seen.own then
    slid, before = total_before(entry, oldest + 1), total_before(entry, oldest)
  else
    if instant >= (entry.newest + entry.N + 1) * entry.R then return 0, 0 end
    local held_from = subinterval_at(math.max(instant, entry.newest * entry.R), entry.R) - entry.N
    local function seen_before(subinterval)
      return total_before(entry, math.max(subinterval_at(math.max(subinterval, 0) * seen.R, entry.R), held_from))
    end
    slid = seen_before(oldest + 1)
    before = oldest >= 0 and seen_before(oldest) or slid
  end
  local full, trailing = entry.through - slid, slid - before
  local weighted = trailing
  if not whole and trailing > 0 then
    local quotient, rest = scale(trailing, seen.R - instant % seen.R, seen.R)
    weighted = quotient + (rest and 1 or 0)
  end
  return full + weighted, full + trailing
end

-- What a request {limit, cost, partial, strict} comes to: units granted, units that remain, units held.
local function weigh(seen, request)
  local estimate, held = load_at(seen, decision_instant(seen, now), request.strict)
  local remaining = math.max(0, request.limit - estimate)
  local granted = request.cost <= remaining and request.cost or request.partial and remaining or 0
  return granted, remaining, held
end

-- §4: ms until a request that is denied now would be granted; -1 when it never is.
local function retry_after(seen, request)
  local room = request.limit - (request.partial and 1 or request.cost)
  if room < 0 then return -1 end
  local entry = seen.entry
  if not entry then return 0 end
  if not seen.own then
    -- Units only slide out: what fits once fits from then on, at the latest at the stored end.
    local low, high = 0, time_to_end(entry)
    while low < high do
      local middle = low + math.floor((high - low) / 2) -- their sum may pass 2^53
      local estimate = load_at(seen, decision_instant(seen, now + middle), request.strict)
      if estimate <= room then high = middle else low = middle + 1 end
    end
    return low
  end
  -- The first subinterval through which so much is counted that all younger ones fit into `room`.
  local low, high = 0, entry.slots
  while low < high do
    local middle = math.floor((low + high) / 2)
    local _, _, total = slot(entry, middle)
    if total < entry.through - room then low = middle + 1 else high = middle end
  end
  local before, last, through = slot(entry, low)
  local early = 0
  if not request.strict then
    if through <= before then fail(WRONGTYPE) end
    early = scale(room - (entry.through - through), seen.R, through - before)
  end
  return math.max(0, (last + seen.N + 1 - subinterval_at(now, seen.R)) * seen.R - now % seen.R - early)
end

-- §4: ms until the estimate is 0 and stays 0; at another geometry (§6) never beyond the stored end.
local function reset_after(seen)
  local entry = seen.entry
  if not entry then return 0 end
  local ends = time_to_end(entry)
  if not seen.own then
    local latest = subinterval_at(entry.newest * entry.R + entry.R - 1, seen.R)
    ends = math.min(ends, (latest + seen.N + 1 - subinterval_at(now, seen.R)) * seen.R - now % seen.R)
  end
  return math.max(0, ends)
end

-- §10: a reply as it reads behind a block of so many ms.
local function behind(reply, ms)
  if not ms then return reply end
  local retry = reply[4] < 0 and -1 or math.max(reply[4], ms)
  return {0, reply[2], 0, retry, math.max(reply[5], ms)}
end

-- The reply while nothing is counted.
local function denial(seen, request, granted, remaining)
  local retry = granted > 0 and 0 or retry_after(seen, request)
  return {granted, request.limit, remaining, retry, reset_after(seen)}
end

local function peek(entry, request)
  local seen = view(entry, request.R, request.N)
  local granted, remaining, held = weigh(seen, request)
  local blocked = blocked_for(entry)
  if not blocked and granted > MAX - held then fail(OVERFLOW) end
  return behind(denial(seen, request, granted, remaining), blocked)
end

-- An entry with these counts, oldest first; the last one is the newest.
local function build(key, resolution, subintervals, subs, counts, blocked)
  local entry = {key = key, R = 0, N = 0, newest = 0, through = 0, slid = 0, blocked = blocked, slots = 0,
    previous = 0, before = 0}
  local parts = {}
  if #subs > 0 then
    entry.R, entry.N, entry.newest, entry.slots = resolution, subintervals, subs[#subs], #subs - 1
    for i = 1, #subs do
      entry.previous, entry.through = entry.through, entry.through + counts[i]
      if i < #subs then parts[i] = pack('<dd', subs[i], entry.through) end
    end
    if subs[1] == entry.newest - subintervals then entry.slid = counts[1] end
  end
  entry.value = string.rep('\0', 76) .. table.concat(parts) -- a header of which only the last total, 0, is read
  return entry
end

-- The counts of an entry, oldest first: subintervals, and units.
local function counts_of(entry)
  local subs, counts = {}, {}
  if entry.R == 0 then return subs, counts end
  slots_of(entry)
  for number = 0, entry.slots do
    local before, subinterval, through = slot(entry, number)
    if not (through > before and subinterval > (subs[number] or -1)) then fail(WRONGTYPE) end
    subs[number + 1], counts[number + 1] = subinterval, through - before
  end
  return subs, counts
end

-- §6: the counts of an entry at another geometry: those that matter in both, where min((i + 1)·R - 1, instant) lies.
local function regrouped(entry, resolution, subintervals)
  local instant = math.max(now, entry.newest * entry.R)
  local oldest = math.max(0, subinterval_at(instant, resolution) - subintervals)
  oldest = math.max(subinterval_at(instant, entry.R) - entry.N, subinterval_at(oldest * resolution, entry.R))
  local subs, counts = {}, {}
  local old_subs, old_counts = counts_of(entry)
  for i = 1, #old_subs do
    if old_subs[i] >= oldest then
      local moved = subinterval_at(math.min((old_subs[i] + 1) * entry.R - 1, instant), resolution)
      if subs[#subs] == moved then counts[#counts] = counts[#counts] + old_counts[i]
      else subs[#subs + 1], counts[#counts + 1] = moved, old_counts[i] end
    end
  end
  return subs, counts
end

-- The entry with units counted at an instant, and whether more than the newest running total has changed. What no
-- longer matters is dropped.
local function counted(entry, seen, key, instant, amount)
  local subinterval = subinterval_at(instant, seen.R)
  if seen.own and subinterval == entry.newest and entry.through + amount <= MAX then
    entry.through = entry.through + amount
    return entry, false
  end
  local subs, counts = {}, {}
  if seen.own then subs, counts = counts_of(entry)
  elseif seen.entry then subs, counts = regrouped(entry, seen.R, seen.N) end
  local place = #subs
  while place > 0 and subs[place] > subinterval do place = place - 1 end
  if place > 0 and subs[place] == subinterval then counts[place] = counts[place] + amount
  else
    table.insert(subs, place + 1, subinterval)
    table.insert(counts, place + 1, amount)
  end
  local first, oldest = 1, subs[#subs] - seen.N
  while subs[first] < oldest do first = first + 1 end
  if first > 1 then
    local kept_subs, kept_counts = {}, {}
    for i = first, #subs do kept_subs[#kept_subs + 1], kept_counts[#kept_counts + 1] = subs[i], counts[i] end
    subs, counts = kept_subs, kept_counts
  end
  return build(key, seen.R, seen.N, subs, counts, entry and entry.blocked or 0), true
end

-- Store an entry that lived for `lived` ms more (nil: a new key); `whole`: more has changed than the newest running total.
local function store(entry, lived, whole)
  local lives = time_to_live(entry)
  if not whole and not till and lives == lived and lives > 0 then
    return ask('SETRANGE', entry.key, '28', pack('<d', entry.through))
  end
  local head = pack('<I4ddddddddd', MAGIC, entry.R, entry.N, entry.newest, entry.through, entry.slid, entry.blocked,
    entry.slots, entry.previous, entry.before)
  return put(entry.key, head .. slots_of(entry), lives, lived)
end

local function allow(key, request)
  local entry = open(key)
  local seen = view(entry, request.R, request.N)
  local granted, remaining, held = weigh(seen, request)
  local blocked, lived = blocked_for(entry), entry and time_to_live(entry)
  if granted == 0 or blocked then
    local reply = behind(denial(seen, request, granted, remaining), blocked)
    if not block or blocked then return reply end
    entry = entry or build(key, 0, 0, {}, {}, 0)
    entry.blocked = now + block
    store(entry, lived, true)
    return behind(reply, block)
  end
  if granted > MAX - held then fail(OVERFLOW) end
  local whole
  entry, whole = counted(entry, seen, key, decision_instant(seen, now), granted)
  store(entry, lived, whole)
  return {granted, request.limit, remaining - granted, 0, math.max(0, time_to_end(entry))}
end

local function record(key, request)
  local entry = open(key)
  local seen = view(entry, request.R, request.N)
  local granted, _, held = weigh(seen, request)
  local fits = granted > 0
  -- What the caller dates counts where it says; what it does not, at the decision instant.
  local dated, instant = age and math.max(0, now - age) or at, decision_instant(seen, now)
  if dated then
    instant = dated
    local subinterval = subinterval_at(dated, seen.R)
    local oldest = seen.entry and newest_seen(seen, now) - seen.N or 0
    local left = (subinterval + seen.N + 1 - subinterval_at(now, seen.R)) * seen.R - now % seen.R
    if subinterval < oldest or left <= 0 then return peek(entry, request) end
    local _
    _, held = load_at(seen, decision_instant(seen, dated), true)
  end
  if request.cost > MAX - held then fail(OVERFLOW) end
  local blocked, lived = blocked_for(entry), entry and time_to_live(entry)
  local begun = not blocked and not fits and block or nil
  local whole
  entry, whole = counted(entry, seen, key, instant, request.cost)
  seen = view(entry, seen.R, seen.N)
  local remaining = math.max(0, request.limit - load_at(seen, decision_instant(seen, now), request.strict))
  local given = fits and not blocked and request.cost or 0
  local retry = (given > 0 or remaining >= request.cost) and 0 or retry_after(seen, request)
  if begun then
    entry.blocked, whole = now + begun, true
    if lived == time_to_live(entry) then lived = nil end
  end
  store(entry, lived, whole)
  return behind({given, request.limit, remaining, retry, reset_after(seen)}, blocked or begun)
end

-- Of a budget, nothing goes back that is older than its period.
local function take_back(key, budget)
  local used, over = in_force(budget)
  if not over or age and math.max(0, now - age) < budget.since then return 0 end
  local given = math.min(units, used)
  local value = pack('<I4ddd', BUDGET_MAGIC, used - given, budget.since, over)
  put(key, value, given < used and over - now or 0, over - now)
  return given
end

local function refund(key)
  local entry, budget = open(key, true)
  if since then age = math.max(0, now - since) end
  if budget then return take_back(key, budget) end
  if not entry or entry.R == 0 or time_to_end(entry) <= 0 then return 0 end
  local from, oldest = entry.newest - entry.N, nil
  if age then
    from = subinterval_at(math.max(0, now - age), entry.R)
    oldest = subinterval_at(math.max(now, entry.newest * entry.R), entry.R) - entry.N
    if from < oldest then return 0 end
    from = math.max(from, entry.newest - entry.N)
  end
  local given, lived = math.min(units, entry.through - total_before(entry, from)), time_to_live(entry)
  if given == 0 then return 0 end
  local before_newest = slot(entry, entry.slots)
  if given < entry.through - before_newest and (not age or from > entry.newest - 1) then
    entry.through = entry.through - given
    store(entry, lived, false)
    return given
  end
  local subs, counts = counts_of(entry)
  local first, last, step = #subs, 1, -1
  if age then first, last, step = 1, #subs, 1 end
  local left = given
  for i = first, last, step do
    if not age or subs[i] >= from then
      local taken = math.min(left, counts[i])
      counts[i], left = counts[i] - taken, left - taken
    end
  end
  local kept_subs, kept_counts = {}, {}
  for i = 1, #subs do
    if counts[i] > 0 then kept_subs[#kept_subs + 1], kept_counts[#kept_counts + 1] = subs[i], counts[i] end
  end
  store(build(key, entry.R, entry.N, kept_subs, kept_counts, entry.blocked), lived, true)
  return given
end

local function begin_block(key)
  local entry = open(key)
  if nx and blocked_for(entry) then return entry.blocked end
  local lived = entry and time_to_live(entry)
  entry = entry or build(key, 0, 0, {}, {}, 0)
  entry.blocked = now + duration
  store(entry, lived, true)
  return entry.blocked
end

local function lift_block(key)
  local entry = open(key)
  if not blocked_for(entry) then return 0 end
  local lived = time_to_live(entry)
  entry.blocked = 0
  store(entry, lived, true)
  return 1
end

local function info(key)
  local entry, budget = open(key, true)
  if budget then return {'used', budget.used, 'since', budget.since, 'until', budget.ends, 'memory', 28} end
  if not entry then fail('ERR no such key') end
  local subs, counts = counts_of(entry)
  local shown, total = {}, 0
  for i = 1, #subs do
    shown[i], total = {subs[i] * entry.R, counts[i]}, total + counts[i]
  end
  return {'window', entry.R * entry.N, 'resolution', entry.R, 'subintervals', entry.N,
    'newest', entry.newest * entry.R, 'total', total, 'memory', 76 + 16 * entry.slots,
    'blocked', blocked_for(entry) and entry.blocked or 0, 'counts', shown}
end

-- §5, §15: all or nothing.
local function decide_all()
  local held, grants, replies, fits = {}, {}, {}, true
  for _, asked in ipairs(quotas) do
    if asked.ends then check_end(asked.ends) end
    asked.strict = request.strict
  end
  for i, request in ipairs(quotas) do
    held[i] = (request.ends and open_budget or open)(KEYS[i]) or false
  end
  for i, request in ipairs(quotas) do
    local value, granted = held[i] or nil, nil
    if request.ends then granted = afford(value, request)
    else
      local entry, seen = value, view(value, request.R, request.N)
      local remaining, counted_units
      granted, remaining, counted_units = weigh(seen, request)
      if blocked_for(entry) then granted = 0 end
      if granted > MAX - counted_units then fail(OVERFLOW) end
      grants[i] = {seen = seen, lived = entry and time_to_live(entry), remaining = remaining}
    end
    fits = fits and granted > 0
  end
  replies[1] = fits and 1 or 0
  if not fits then
    for i, request in ipairs(quotas) do
      local value = held[i] or nil
      replies[i + 1] = request.ends and spent(value, request, afford(value, request)) or peek(value, request)
    end
    return replies
  end
  -- All keys are written by one command, SETRANGE or SET: a user who may not run it counts nothing anywhere.
  local any_whole = false
  for i, request in ipairs(quotas) do
    local grant, whole = grants[i], true
    if grant then
      local instant = decision_instant(grant.seen, now)
      grant.entry, whole = counted(held[i] or nil, grant.seen, KEYS[i], instant, request.cost)
      local left = math.max(0, time_to_end(grant.entry))
      replies[i + 1] = {request.cost, request.limit, grant.remaining - request.cost, 0, left}
    end
    any_whole = any_whole or whole
  end
  for i, request in ipairs(quotas) do
    local grant = grants[i]
    if grant then store(grant.entry, grant.lived, any_whole)
    else replies[i + 1] = spent(spend(KEYS[i], held[i] or nil, request, request.cost), request, request.cost) end
  end
  return replies
end

local function run()
  local key = KEYS[1]
  if command == 'ALLOW' then return allow(key, request)
  elseif command == 'PEEK' then return peek(open(key), request)
  elseif command == 'RECORD' then return record(key, request)
  elseif command == 'REFUND' then return refund(key)
  elseif command == 'BLOCK' then return begin_block(key)
  elseif command == 'UNBLOCK' then return lift_block(key)
  elseif command == 'INFO' then return info(key)
  end
  return decide_all()
end

local reply = answer(run)
if words or reply.err then return reply end
if reply[1] > 0 then return pack('<ddd', reply[1], reply[3], reply[5]) end
return pack('<ddd', -reply[3], reply[4], reply[5])
