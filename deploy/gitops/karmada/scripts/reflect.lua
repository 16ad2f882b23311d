-- What Karmada keeps of a member's status: numbers, texts and conditions, not lists that grow with the Pods.
function ReflectStatus(observedObj)
  local reflected = {}
  if observedObj == nil or observedObj.status == nil then
    return reflected
  end
  for name, value in pairs(observedObj.status) do
    if type(value) ~= "table" or name == "conditions" then
      reflected[name] = value
    end
  end
  reflected.generation = observedObj.metadata.generation
  local annotations = observedObj.metadata.annotations or {}
  reflected.resourceTemplateGeneration = tonumber(annotations["resourcetemplate.karmada.io/generation"])
  return reflected
end
