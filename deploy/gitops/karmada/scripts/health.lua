-- Healthy is what has reached its present spec: its condition Ready is True for it.
function InterpretHealth(observedObj)
  local status = observedObj.status
  if status == nil then
    return false
  end
  if status.progress == "Succeeded" then
    return true -- an OperationJob that has ended is judged no more
  end
  for _, condition in ipairs(status.conditions or {}) do
    if condition.type == "Ready" then
      return condition.status == "True" and condition.observedGeneration == observedObj.metadata.generation
    end
  end
  return false
end
