// Prints the layers of a model that torch_ir wrote as protobuf, as a graph or lowered: ./reader model.pb
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "torch_ir.pb.h"

namespace ir = torch_ir::v1;

// A tensor; nodes refer to it by its index in a list of these.
struct Tensor {
  std::string name;
  const ir::Type* type;
};

std::string text(const ir::Type& type) {
  std::string shape;
  for (const ir::Dim& dim : type.shape()) {
    if (!shape.empty()) shape += ", ";
    shape += dim.has_size() ? std::to_string(dim.size()) : dim.expression();
  }
  return type.dtype() + "[" + shape + "]";
}

// Return an entry of one of the model's tables, or of the list of tensors.
template <typename Items>
auto& at(Items& items, uint32_t number) {
  if (number >= static_cast<uint32_t>(items.size())) throw std::runtime_error("an index is out of range");
  return items[number];
}

template <typename Items, typename Text>
std::string joined(const Items& items, Text text) {
  std::string all;
  for (const auto& item : items) all += (all.empty() ? "" : ", ") + text(item);
  return all;
}

std::string text(const ir::Value& value) {
  switch (value.kind_case()) {
    case ir::Value::kNone: return "None";
    case ir::Value::kBoolean: return value.boolean() ? "True" : "False";
    case ir::Value::kInteger: return std::to_string(value.integer());
    case ir::Value::kReal: return std::to_string(value.real());
    case ir::Value::kText: return "'" + value.text() + "'";
    case ir::Value::kIntegers:
      return "[" + joined(value.integers().items(), [](int64_t item) { return std::to_string(item); }) + "]";
    case ir::Value::kList:
      return "[" + joined(value.list().items(), [](const ir::Value& item) { return text(item); }) + "]";
    case ir::Value::kDict:
      return "{" + joined(value.dict().items(), [](const ir::Attribute& item) {
               return item.name() + ": " + text(item.value());
             }) + "}";
    case ir::Value::kDtype: return value.dtype();
    case ir::Value::kDevice: return value.device();
    case ir::Value::kLayout: return value.layout();
    case ir::Value::kMemoryFormat: return value.memory_format();
    case ir::Value::kExpression: return value.expression();
    case ir::Value::kFunction: return "@" + value.function();
    case ir::Value::kComplexNumber:
      return "complex(" + std::to_string(value.complex_number().real()) + ", " +
             std::to_string(value.complex_number().imaginary()) + ")";
    case ir::Value::kBigInteger: return value.big_integer();
    case ir::Value::kTensor: return "tensor " + std::to_string(value.tensor());
    case ir::Value::kBranch:
      return "(" + joined(value.branch().items(), [](const ir::Value& item) { return text(item); }) + ")";
    case ir::Value::KIND_NOT_SET: break;
  }
  return "?";
}

void print(const ir::Model& model, const ir::Graph& graph, const std::vector<Tensor>& around, const std::string& indent) {
  std::vector<Tensor> tensors;
  for (const ir::Tensor& input : graph.inputs()) {
    tensors.push_back({input.name(), &at(model.types(), input.type())});
    std::cout << indent << "input " << input.name() << ": " << text(*tensors.back().type) << "\n";
  }
  for (const std::string& name : graph.shared_weights())
    for (const Tensor& tensor : around)
      if (tensor.name == name) tensors.push_back(tensor);
  std::map<std::string, std::string> keys;  // of weights in the state dict, by the name of the tensor
  for (const ir::Weight& weight : graph.weights()) {
    tensors.push_back({weight.tensor().name(), &at(model.types(), weight.tensor().type())});
    if (weight.keys_size()) keys[weight.tensor().name()] = weight.keys(0);
  }
  for (const ir::Node& node : graph.nodes()) {
    const ir::Operation& operation = at(model.operations(), node.operation());
    const ir::Place& place = at(model.places(), node.place());
    std::cout << indent << operation.op_type();
    if (!place.module().empty()) std::cout << "  (" << place.module() << ", " << place.module_class() << ")";
    std::cout << "\n";
    for (int i = 0; i < node.inputs_size(); ++i) {
      const Tensor& tensor = at(tensors, node.inputs(i));
      const std::string argument = i < operation.arguments_size() ? operation.arguments(i) : "";
      std::cout << indent << "  " << argument << " = " << tensor.name << ": " << text(*tensor.type) << "\n";
    }
    for (const ir::Attribute& attribute : operation.attributes())
      std::cout << indent << "  " << attribute.name() << " = " << text(attribute.value()) << "\n";
    for (const ir::Tensor& output : node.outputs()) {
      tensors.push_back({output.name().empty() ? node.name() : output.name(), &at(model.types(), output.type())});
      std::cout << indent << "  -> " << tensors.back().name << ": " << text(*tensors.back().type) << "\n";
    }
  }
  for (uint32_t number : graph.outputs()) std::cout << indent << "output " << at(tensors, number).name << "\n";
  for (const ir::Mutation& mutation : graph.mutations()) {
    const auto key = keys.find(mutation.target());
    const std::string& target = key == keys.end() ? mutation.target() : key->second;
    std::cout << indent << "update " << target << " := " << mutation.value() << "\n";
  }
  for (const ir::Graph& body : graph.functions()) {
    std::cout << indent << "function " << body.name() << "\n";
    print(model, body, tensors, indent + "  ");
  }
}

void print(const ir::Lowered& model) {
  std::cout << model.model_name() << " for " << model.target() << ": " << model.layers_size() << " layers\n";
  for (const ir::Layer& layer : model.layers()) {
    std::cout << layer.kind() << "  (" << layer.name() << ")\n";
    for (const std::string& input : layer.inputs()) std::cout << "  reads " << input << "\n";
    for (const ir::LayerWeight& weight : layer.weights())
      std::cout << "  " << weight.argument() << " = " << weight.key() << "\n";
    std::cout << "  -> " << (layer.has_value() ? text(layer.value()) : "a placeholder") << "\n";
  }
  for (const ir::Mutation& mutation : model.mutations())
    std::cout << "update " << mutation.target() << " := " << mutation.value() << "\n";
}

int main(int count, char** arguments) {
  if (count != 2) {
    std::cerr << "usage: reader model.pb\n";
    return 2;
  }
  std::ifstream file(arguments[1], std::ios::binary);
  const std::string data{std::istreambuf_iterator<char>(file), {}};
  ir::LoweredModel lowered;
  if (lowered.ParseFromString(data) && lowered.format() == "torch-ir-lowered" && lowered.version() == 1) {
    print(lowered.lowered());
    return 0;
  }
  ir::Model model;
  if (!model.ParseFromString(data) || model.format() != "torch-ir") {
    std::cerr << arguments[1] << " is not a protobuf file of torch_ir\n";
    return 1;
  }
  if (model.version() != 1) {
    std::cerr << arguments[1] << " has version " << model.version() << ", but this program reads version 1\n";
    return 1;
  }
  const ir::Graph& graph = model.graph();
  std::cout << graph.model_name() << ": " << graph.nodes_size() << " nodes, " << graph.weights_size() << " weights\n";
  try {
    print(model, graph, {}, "");
  } catch (const std::runtime_error& error) {
    std::cerr << arguments[1] << ": " << error.what() << "\n";
    return 1;
  }
  return 0;
}
