-- One status of those of all members: numbers are added up, texts kept where all agree, and a condition is as bad
-- as that of the worst member. It refers to the present generation when every member has looked at it.
local notAdded = {
  observedGeneration = true, generation = true, resourceTemplateGeneration = true, collisionCount = true,
}
local good = {
  Ready = "True", Progressing = "True", Scale = "True", Update = "True",
  Stalled = "False", Reconciling = "False",
}

local function conditionOf(item, conditionType)
  for _, condition in ipairs((item.status or {}).conditions or {}) do
    if condition.type == conditionType then
      return condition
    end
  end
  if conditionType == "Ready" then
    return { status = "False", reason = "Propagating", message = "there is no status yet" }
  end
end

-- A time is kept as long as the condition does not turn.
local function since(before, conditionType, status)
  for _, condition in ipairs(before) do
    if condition.type == conditionType and condition.status == status then
      return condition.lastTransitionTime
    end
  end
  return os.date("!%Y-%m-%dT%H:%M:%SZ")
end

local function worst(items, conditionType, generation, before)
  local messages, bad, any = {}, 0, nil
  for _, item in ipairs(items) do
    local condition = conditionOf(item, conditionType)
    if condition ~= nil and condition.status ~= good[conditionType] then
      bad = bad + 1
      if bad == 1 then
        any = condition
      end
      if bad <= 3 and condition.message ~= nil and condition.message ~= "" then
        table.insert(messages, item.clusterName .. ": " .. condition.message)
      end
    elseif any == nil then
      any = condition
    end
  end
  if any == nil then
    return nil
  end
  if bad > 3 then
    table.insert(messages, "and " .. bad - 3 .. " clusters more")
  end
  return {
    type = conditionType, status = any.status, reason = any.reason, message = table.concat(messages, "; "),
    observedGeneration = generation, lastTransitionTime = since(before, conditionType, any.status),
  }
end

-- How far an OperationJob is that runs in several clusters.
local function progressOf(items)
  local seen = {}
  for _, item in ipairs(items) do
    seen[(item.status or {}).progress or "Pending"] = true
  end
  if seen.Processing or (seen.Pending and (seen.Succeeded or seen.Failed)) then
    return "Processing"
  end
  return seen.Pending and "Pending" or seen.Failed and "Failed" or "Succeeded"
end

function AggregateStatus(desiredObj, statusItems)
  local items, before = statusItems or {}, desiredObj.status or {}
  local status, differs, observed = {}, {}, 0
  for _, item in ipairs(items) do
    local of = item.status or {}
    local isPresent = of.resourceTemplateGeneration == desiredObj.metadata.generation
    if isPresent and of.generation == of.observedGeneration then
      observed = observed + 1
    end
    for name, value in pairs(of) do
      if type(value) == "number" and not notAdded[name] then
        status[name] = (status[name] or 0) + value
      elseif type(value) == "string" then
        differs[name] = differs[name] or (status[name] ~= nil and status[name] ~= value)
        status[name] = value
      end
    end
  end
  for name, different in pairs(differs) do
    if different then
      status[name] = nil
    end
  end
  status.observedGeneration = before.observedGeneration
  if observed == #items then
    status.observedGeneration = desiredObj.metadata.generation
  end
  if desiredObj.kind == "CollaSet" then
    status.readiness = string.format("%d/%d", status.readyReplicas or 0, desiredObj.spec.replicas or 0)
  elseif desiredObj.kind == "OperationJob" and #items > 0 then
    status.progress = progressOf(items)
  end
  local conditions = {}
  for _, conditionType in ipairs({ "Ready", "Reconciling", "Stalled", "Progressing", "Scale", "Update" }) do
    local condition = worst(items, conditionType, status.observedGeneration, before.conditions or {})
    if condition ~= nil then
      table.insert(conditions, condition)
    end
  end
  if #conditions > 0 then
    status.conditions = conditions
  end
  desiredObj.status = status
  return desiredObj
end
